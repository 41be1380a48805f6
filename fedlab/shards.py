"""Shows how a partition spreads the classes over the clients."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from fedserver.worker.partition import Indices

BARS = " ▁▂▃▄▅▆▇█"
MAX_COLUMNS = 10
"""Up to this many classes the counts stand beside the bars."""


def show(counts: Indices, console: Console) -> None:
    """Prints a histogram of each client's classes; its largest class has full height."""
    numbered = counts.shape[1] <= MAX_COLUMNS
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("client")
    table.add_column("classes", no_wrap=True)
    for heading in (*(map(str, range(counts.shape[1])) if numbered else ()), "sum"):
        table.add_column(heading, justify="right")
    for i, row in enumerate(counts):
        numbers = [str(n) if n else "." for n in row] if numbered else []
        table.add_row(str(i), "".join(_bar(int(n), int(row.max())) for n in row), *numbers, str(row.sum()))
    console.print(table)


def _bar(n: int, most: int) -> str:
    return BARS[-(-(len(BARS) - 1) * n // most)]
