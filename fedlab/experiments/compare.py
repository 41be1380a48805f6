"""Algorithms, ways of having control variates, and codecs side by side: what they learn, send and take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedlab.experiments.cells import Cell, run_cells
from fedlab.experiments.methods import METHODS, TRAFFIC
from fedlab.reports.runs import Run


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, and by what."""

    settings: Mapping[str, Any]
    """The same for all runs."""
    codecs: Sequence[str]
    """As for `--codec`; each is tried with every method."""
    target: float
    link: float
    """Bits per second of each client, in either direction."""

    def cells(self) -> dict[tuple[str, str], Cell]:
        """One run for every method and codec."""
        return {
            (method, codec): Cell.of({**METHODS[method], "codec": codec.split("+"), **self.settings})
            for method in TRAFFIC
            for codec in self.codecs
        }

    def rows(self, runs: Mapping[tuple[str, str], Run]) -> list[dict[str, Any]]:
        """What the table shows, from the run directories alone."""
        return [self._row(method, codec, run) for (method, codec), run in runs.items()]

    def _row(self, method: str, codec: str, run: Run) -> dict[str, Any]:
        exchanges = sum(record["updates"] for record in run.rounds)
        sent = {
            direction: sum(sum(record["bytes"][direction].values()) for record in run.rounds) / exchanges
            for direction in ("down", "up")
        }
        return {
            "method": method,
            "codec": codec,
            "accuracy": run.accuracy(),
            "rounds_to_target": run.rounds_to(self.target),
            "down_bytes": sent["down"],
            "up_bytes": sent["up"],
            "transfer_seconds": 8 * (sent["down"] + sent["up"]) / self.link,
            "seconds_to_target": run.seconds_to(self.target, self.link),
        }


def compare(comparison: Comparison, folder: Path, jobs: int, console: Console) -> list[dict[str, Any]]:
    """Runs what has not been run yet, and returns a row for each method and codec."""
    cells = comparison.cells()
    run_cells(list(cells.values()), folder, jobs, console)
    return comparison.rows({key: cell.read(folder) for key, cell in cells.items()})


def show(rows: list[dict[str, Any]], target: float, link: str, console: Console) -> None:
    """Prints the table."""
    table = Table(
        title=f"per client and round: bytes, and seconds they take at {link}; time to {target:.0%} there",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    table.add_column("method", no_wrap=True)
    table.add_column("codec", no_wrap=True)
    for heading in ("accuracy", "rounds", "down", "up", "transfer", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        seconds = row["seconds_to_target"]
        table.add_row(
            row["method"],
            row["codec"],
            f"{row['accuracy']:.1%}",
            str(row["rounds_to_target"] or "-"),
            f"{row['down_bytes']:,.0f}",
            f"{row['up_bytes']:,.0f}",
            f"{row['transfer_seconds']:.2f} s",
            "-" if seconds is None else f"{seconds:.1f} s",
        )
    console.print(table)
