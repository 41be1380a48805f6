"""The paper's tables and figures by name: runs what they need, and writes a folder with a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.page.page import Page
from fedlab.experiments import figures, tables
from fedlab.experiments.bench import Bench, Output
from fedlab.reports.tables import Table

EXPERIMENTS: dict[str, Callable[[Bench, Output], None]] = {
    "table1": tables.table1,
    "table2": tables.table2,
    "fig-drift": figures.drift,
    "fig-svr-start": figures.svr_start,
    "fig-conformal": figures.conformal,
    "fig-partition": figures.partition,
}


@dataclass(frozen=True)
class Made:
    """What came of an experiment."""

    report: Path
    tables: dict[str, Table]
    """By title."""


def reproduce(what: str, bench: Bench, command: str) -> Made:
    """Runs an experiment and writes its folder."""
    out = bench.folder / what
    out.mkdir(parents=True, exist_ok=True)
    page = Page(f"{what}, {bench.scale.name} scale")
    page.text(f"Made by `{command}`; all runs are in `{bench.runs}`.")
    output = Output(out, page)
    EXPERIMENTS[what](bench, output)
    page.write(out / "report.html")
    return Made(out / "report.html", output.tables)
