"""Where an experiment runs, and where it puts what it has made."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.data import datasets
from common.data.datasets import Dataset
from common.events import Emit
from common.page.page import Page
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Outcome, finished_run, outcome_after
from fedlab.engine.running import run_cells
from fedlab.experiments.scales import Column, Scale
from fedlab.reports import plots
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table


@dataclass(frozen=True)
class Bench:
    """Where an experiment runs and what it may use."""

    scale: Scale
    seeds: int
    engine: EngineChoice
    folder: Path
    data_dir: str
    emit: Emit

    @property
    def runs(self) -> Path:
        """All runs of a scale, shared by its experiments."""
        return self.folder / "runs"

    def cell(self, column: Column, method: str, seed: int, **changes: object) -> Cell:
        """One run of a column."""
        return Cell.of(self.scale.cell(column, method, seed, self.runs, self.data_dir) | changes)

    def central(self, column: Column, seed: int) -> Cell:
        """The pooled baseline: one client that has everything."""
        return Cell.of(self.scale.central(column, seed, self.runs, self.data_dir))

    def run(self, cells: Sequence[Cell]) -> None:
        """Runs what has neither finished nor diverged; a cell that fails does not keep the others from it."""
        run_cells(cells, self.runs, self.engine, self.emit)

    def outcome(self, cell: Cell) -> Outcome:
        """What came of a cell; `fedlab.engine.outcome` says how tables use it."""
        return outcome_after(cell, self.runs)

    def read(self, cell: Cell) -> Run:
        """A finished run; raises for any other."""
        return finished_run(cell, self.runs)

    def dataset(self, column: Column) -> Dataset:
        """The training examples of a column, at the size in which they were published."""
        return datasets.load(column.dataset, "train", self.data_dir)


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

    def pictures(self, name: str, charts: list[plots.Drawn]) -> None:
        """Adds pictures, numbered from 0."""
        for number, chart in enumerate(charts):
            plots.save(chart, self.folder, f"{name}-{number}")
        self.page.charts(charts)


def floats(run: Run) -> float:
    """Model and control payload per client and round, in units of the model sent once."""
    counts = run.bytes_per_client_and_round()
    return 2 * (counts["model"] + counts["control"]) / counts["model"]


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    mean = statistics.mean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"
