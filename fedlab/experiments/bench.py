"""Where experiments run, and where what came of them is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.events import Emit
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Kind, Outcome, outcome_of
from fedlab.engine.running import run_cells


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
        return self.folder / "runs"

    def run(self, cells: Sequence[Cell]) -> None:
        """Runs what has neither finished nor diverged; a cell that fails does not keep the others from it."""
        run_cells(cells, self.runs, self.engine, self.emit)

    def outcome(self, cell: Cell) -> Outcome:
        """What came of a cell; `fedlab.engine.outcome` says how tables use it."""
        return outcome_of(cell, self.runs) or Outcome(kind=Kind.FAILED, reason="it has not run")
