"""What came of a cell: finished, stopped at its target, diverged or failed; and how a table says so.

A table asks for outcomes instead of runs, and no cell of it can end an experiment:

    bench.run(cells)                                  # Raises for no cell.
    found = [bench.outcome(cell) for cell in cells]   # One for each seed, say.
    values = [run.accuracy() for run in usable(found)]
    text = spread(values) if values else ""
    row.append(" ".join(filter(None, [text, marks(found)])))   # 61.2 ± 0.4 diverged (r. 12)

and where there is one cell for an entry: `outcome.shown(lambda run: f"{run.accuracy():.1%}")`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from common import json_files
from common.errors import RunError, StateError
from common.records.conformal import CONFORMAL, ConformalRecord
from common.records.rounds import read_rounds
from fedlab.engine.cells import Cell
from fedlab.reports.runs import Run, read_run


class Kind(StrEnum):
    """How a cell can end."""

    FINISHED = "finished"
    STOPPED = "stopped at target"
    """It has reached the accuracy at which it may end."""
    DIVERGED = "diverged"
    """Its model or its loss is not finite any more. It would diverge again."""
    FAILED = "failed"
    """Anything else. It runs again the next time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one cell."""

    kind: Kind
    run: Run | None = None
    """The rounds that have closed, up to the target where it stopped there; None if there are none."""
    round: int | None = None
    """In which it diverged or reached its target."""
    reason: str = ""
    """Why it diverged or failed."""
    log: Path | None = None
    """What the process of a cell without a usable run has said."""

    @property
    def usable(self) -> Run | None:
        """The run, if it has all rounds that were asked for."""
        return self.run if self.kind in (Kind.FINISHED, Kind.STOPPED) else None

    @property
    def mark(self) -> str:
        """What a table prints in place of a value; empty where there is one."""
        if self.usable is not None:
            return ""
        return str(self.kind) if self.round is None else f"{self.kind} (r. {self.round})"

    def shown(self, of: Callable[[Run], str]) -> str:
        """An entry of a table: what `of` makes of the run, or how the cell ended instead."""
        return self.mark if self.usable is None else of(self.usable)

    def text(self) -> str:
        """How it ended, in words, with the reason."""
        where = f" in round {self.round}" if self.round is not None else ""
        return f"{self.kind}{where}" + (f": {self.reason}" if self.reason else "")


def usable(outcomes: Iterable[Outcome]) -> list[Run]:
    """The runs that have all rounds that were asked for."""
    return [outcome.usable for outcome in outcomes if outcome.usable is not None]


def marks(outcomes: Iterable[Outcome]) -> str:
    """What a table adds to an entry that is made of several cells: those that have no value."""
    found = Counter(outcome.mark for outcome in outcomes if outcome.mark)
    return ", ".join(mark if count == 1 else f"{count} x {mark}" for mark, count in found.items())


@dataclass(frozen=True, kw_only=True)
class Ending:
    """KEY.outcome.json: how a cell ended without all of its rounds."""

    kind: Kind
    round: int | None = None
    reason: str = ""


def log_of(cell: Cell, folder: Path) -> Path:
    """Where a cell's process writes what it says."""
    return folder / f"{cell.key}.log"


def note(cell: Cell, folder: Path, ending: Ending | None) -> None:
    """Writes down how a cell ended without all of its rounds; None forgets it."""
    path = _noted_in(cell, folder)
    if ending is None:
        path.unlink(missing_ok=True)
    else:
        json_files.write(path, ending)


def outcome_of(cell: Cell, folder: Path) -> Outcome | None:
    """What the folder says of a cell; None if it has not come to any end yet."""
    try:
        run = _so_far(folder / cell.key)
        if run is not None and (whole := _whole(run, cell.stop_at)) is not None:
            return whole
        path = _noted_in(cell, folder)
        if not path.exists():
            return None
        ending = json_files.read(path, Ending, "remove it, and the cell runs again")
    except StateError as error:
        return Outcome(kind=Kind.FAILED, reason=str(error), log=log_of(cell, folder))
    return Outcome(
        kind=ending.kind, run=run, round=ending.round, reason=ending.reason, log=log_of(cell, folder)
    )


def _so_far(run_dir: Path) -> Run | None:
    """The rounds that have closed; their order is that of their numbers, whichever was evaluated first."""
    if not read_rounds(run_dir):
        return None
    run = read_run(run_dir)
    return replace(run, rounds=sorted(run.rounds, key=lambda record: record.round))


def _whole(run: Run, stop_at: float | None) -> Outcome | None:
    """The outcome of a run that has all rounds that were asked for.

    One that went on beyond its target, because it was quicker than whoever was to stop it or because it was
    not to stop when it ran, ends there all the same: a table does not depend on that.
    """
    reached = None if stop_at is None else run.rounds_to(stop_at)
    if reached is not None and reached != run.config.others.get("rounds"):
        rounds = [record for record in run.rounds if record.round <= reached]
        return Outcome(
            kind=Kind.STOPPED,
            run=replace(run, rounds=rounds, calibrated=ConformalRecord(sets=())),
            round=reached,
        )
    return Outcome(kind=Kind.FINISHED, run=run) if (run.path / CONFORMAL).exists() else None


def outcome_after(cell: Cell, folder: Path) -> Outcome:
    """The same once cells have been run: one that has come to no end has failed."""
    return outcome_of(cell, folder) or Outcome(kind=Kind.FAILED, reason="it has not run")


def finished_run(cell: Cell, folder: Path) -> Run:
    """The run of a cell that has all rounds that were asked for; raises for any other."""
    outcome = outcome_of(cell, folder)
    if outcome is None or outcome.usable is None:
        raise RunError(f"run {cell.key} {'has not run' if outcome is None else outcome.text()}")
    return outcome.usable


def _noted_in(cell: Cell, folder: Path) -> Path:
    return folder / f"{cell.key}.outcome.json"
