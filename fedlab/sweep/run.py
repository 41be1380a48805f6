"""A whole sweep: the model that all start from, the search, the runs of the report."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import RunError
from common.events import Emit
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Outcome, outcome_after
from fedlab.engine.running import run_cells
from fedlab.sweep.file import Configured
from fedlab.sweep.form import Sweep
from fedlab.sweep.plan import Plan, PlannedRun, named
from fedlab.sweep.results import Entry
from fedlab.sweep.search import chosen, search
from fedlab.sweep.tables import Results
from fedserver.store.run_dir import MODEL


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the runs of a sweep go, and what runs them."""

    folder: Path
    """Absolute, for nodes with another working directory."""
    data_dir: str
    engine: EngineChoice
    emit: Emit

    @property
    def runs(self) -> Path:
        """All runs, those of the search too."""
        return self.folder / "runs"

    def run(self, cells: Sequence[Cell]) -> None:
        """Runs what has not come to its end."""
        run_cells(cells, self.runs, self.engine, self.emit)

    def outcome(self, cell: Cell) -> Outcome:
        """What came of a cell."""
        return outcome_after(cell, self.runs)


def run_sweep(sweep: Sweep, place: Place, configured: Configured) -> Results:
    """Runs what is not there yet; what is, an earlier start has left."""
    plan = Plan(sweep=sweep, data_dir=place.data_dir)
    if (first := plan.first()) is not None:
        plan = plan.with_init(_first_model(first, place))
    tries = list(plan.search())
    if tries:
        place.run([run.cell for run in tries])
    tried = search(tries, place.outcome, sweep.report.score)
    plan = replace(plan, chosen=chosen(tried))
    runs = list(plan.report())
    place.run([run.cell for run in runs])
    return Results(sweep=sweep, tried=tried, entries=_entries(runs, place, configured))


def _first_model(cell: Cell, place: Place) -> Path:
    """Runs what all others start from; its model gets the name of its content, which is in theirs."""
    place.run([cell])
    outcome = place.outcome(cell)
    if outcome.usable is None:
        raise RunError(f"the run of [prepare] {outcome.text()}; its log is {outcome.log}")
    source = outcome.usable.path / MODEL
    target = place.runs / f"init-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.safetensors"
    if not target.exists():
        shutil.copyfile(source, target)
    return target


def _entries(
    runs: Sequence[PlannedRun], place: Place, configured: Configured
) -> dict[tuple[str, str], Entry]:
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.method, named(run.point)), []).append(run)
    return {
        key: Entry(
            method=group[0].method,
            point=group[0].point,
            chosen=group[0].tried,
            outcomes={run.seed: place.outcome(run.cell) for run in group},
            rounds=configured(group[0].cell).rounds,
        )
        for key, group in groups.items()
    }
