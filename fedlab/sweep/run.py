"""A whole sweep: the model that all start from, the search, the runs of the report."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import RunError
from fedlab.engine.cells import Cell
from fedlab.experiments.bench import Bench
from fedlab.sweep.file import Configured
from fedlab.sweep.form import Sweep
from fedlab.sweep.plan import Plan, PlannedRun, named
from fedlab.sweep.results import Entry
from fedlab.sweep.search import chosen, search
from fedlab.sweep.tables import Results
from fedserver.store.run_dir import MODEL


def run_sweep(sweep: Sweep, bench: Bench, configured: Configured) -> Results:
    """Runs what is not there yet; what is, an earlier start has left."""
    plan = Plan(sweep=sweep, data_dir=bench.data_dir)
    if (first := plan.first()) is not None:
        plan = plan.with_init(_first_model(first, bench))
    tries = list(plan.search())
    if tries:
        bench.run([run.cell for run in tries])
    tried = search(tries, bench.outcome, sweep.report.score)
    plan = replace(plan, chosen=chosen(tried))
    runs = list(plan.report())
    bench.run([run.cell for run in runs])
    return Results(sweep=sweep, tried=tried, entries=_entries(runs, bench, configured))


def _first_model(cell: Cell, bench: Bench) -> Path:
    """Runs what all others start from; its model gets the name of its content, which is in theirs."""
    bench.run([cell])
    outcome = bench.outcome(cell)
    if outcome.usable is None:
        raise RunError(f"the run of [prepare] {outcome.text()}; its log is {outcome.log}")
    source = outcome.usable.path / MODEL
    target = bench.runs / f"init-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.safetensors"
    if not target.exists():
        shutil.copyfile(source, target)
    return target


def _entries(
    runs: Sequence[PlannedRun], bench: Bench, configured: Configured
) -> dict[tuple[str, str], Entry]:
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.method, named(run.point)), []).append(run)
    return {
        key: Entry(
            method=group[0].method,
            point=group[0].point,
            chosen=group[0].tried,
            outcomes={run.seed: bench.outcome(run.cell) for run in group},
            rounds=configured(group[0].cell).rounds,
        )
        for key, group in groups.items()
    }
