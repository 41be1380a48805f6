"""Shows the presets."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def show(table: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Prints a line for each preset, with the step size of each algorithm."""
    console = Console()
    algorithms = list(next(iter(table.values())))
    view = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), title="eta_l (schedule)", title_justify="left")
    for heading in ("preset", *algorithms):
        view.add_column(heading, no_wrap=True)
    for preset, by_algorithm in table.items():
        cells = []
        for settings in by_algorithm.values():
            schedule = settings["schedule"]
            cells.append(f"{settings['eta_l']}" + ("" if schedule == "constant" else f" ({schedule})"))
        view.add_row(preset, *cells)
    console.print(view)
    some = next(iter(next(iter(table.values())).values()))
    shared = ("num_clients", "rounds", "local_epochs", "batch_size")
    console.print(", ".join(f"{name} {some[name]}" for name in shared), highlight=False)
