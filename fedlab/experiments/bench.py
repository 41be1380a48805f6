"""Where an experiment runs, and where it puts what it has made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.events import Emit
from common.page.page import Page
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Outcome, outcome_after
from fedlab.engine.running import run_cells
from fedlab.reports import plots
from fedlab.reports.tables import Table


@dataclass(frozen=True)
class Bench:
    """Where an experiment runs and what it may use."""

    engine: EngineChoice
    folder: Path
    data_dir: str
    emit: Emit

    @property
    def runs(self) -> Path:
        """All runs of a scale, shared by its experiments."""
        return self.engine.runs_in(self.folder / "runs")

    def run(self, cells: Sequence[Cell]) -> None:
        """Runs what has neither finished nor diverged; a cell that fails does not keep the others from it."""
        run_cells(cells, self.runs, self.engine, self.emit)

    def outcome(self, cell: Cell) -> Outcome:
        """What came of a cell; `fedlab.engine.outcome` says how tables use it."""
        return outcome_after(cell, self.runs)


@dataclass(frozen=True)
class Output:
    """What an experiment has made: files in a folder, and the same on one page."""

    folder: Path
    page: Page
    tables: dict[str, Table] = field(default_factory=dict)
    """By title, in their order."""

    def table(self, name: str, title: str, table: Table) -> None:
        """Adds a table."""
        table.save(self.folder, name)
        self.tables[title] = table
        self.page.heading(title)
        self.page.table(table)

    def published(self, title: str, table: Table) -> None:
        """Adds a table of the paper's numbers."""
        self.page.heading(title)
        self.page.table(table)

    def pictures(self, name: str, charts: list[plots.Drawn]) -> None:
        """Adds pictures, numbered from 0."""
        for number, chart in enumerate(charts):
            plots.save(chart, self.folder, f"{name}-{number}")
        self.page.charts(charts)
