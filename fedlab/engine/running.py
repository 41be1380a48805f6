"""Runs cells that have not run yet, several at a time, and writes down how each ended."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import ExitCode
from common.events import Emit
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.fetching import fetch
from fedlab.engine.outcome import Ending, Kind, Outcome, log_of, note, outcome_of
from fedlab.engine.task import Ended, Task
from fedlab.events import RunFinished, RunsPlanned
from fedlab.processes import children


def run_cells(cells: Sequence[Cell], folder: Path, engine: EngineChoice, emit: Emit) -> None:
    """Runs what has neither finished nor diverged. No cell ends the others: `outcome_of` tells of each."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    unique = _one_for_each_folder(cells)
    due = [cell for cell in unique if _is_due(outcome_of(cell, folder))]
    emit(RunsPlanned(finished=len(unique) - len(due), total=len(unique)))
    started, total = time.monotonic(), len(due)
    for done, cell in enumerate(_run(due, folder, engine, emit), start=1):
        left = (time.monotonic() - started) / done * (total - done)
        ended = outcome_of(cell, folder)
        if ended is None:
            reason = f"ended before its last round: {_last_words(cell, folder)}"
            note(cell, folder, Ending(kind=Kind.FAILED, reason=reason))
            ended = Outcome(kind=Kind.FAILED, reason=reason)
        emit(RunFinished(key=cell.key, outcome=ended.text(), done=done, total=total, seconds_left=left))


def _one_for_each_folder(cells: Sequence[Cell]) -> list[Cell]:
    """Cells without their like; of those that differ in where they may stop, the one that goes on longest."""
    found: dict[str, Cell] = {}
    for cell in cells:
        other = found.setdefault(cell.key, cell)
        if other.stop_at is not None and (cell.stop_at is None or cell.stop_at > other.stop_at):
            found[cell.key] = cell
    return list(found.values())


def _is_due(outcome: Outcome | None) -> bool:
    return outcome is None or outcome.kind is Kind.FAILED


def _run(due: list[Cell], folder: Path, choice: EngineChoice, emit: Emit) -> Iterator[Cell]:
    """Runs cells, and yields each when it has ended and that is written down."""
    for cell in due:
        note(cell, folder, None)
    without_data = fetch(due)
    for cell, reason in without_data.items():
        note(cell, folder, Ending(kind=Kind.FAILED, reason=reason))
        yield cell
    cells = {cell.key: cell for cell in due if cell not in without_data}
    if not cells:
        return
    engine = choice.opened(folder, emit)
    try:
        for cell in cells.values():
            engine.submit(Task.of(cell, folder))
        for ended in engine.ended():
            cell = cells[ended.key]
            note(cell, folder, _ending(ended, cell, folder))
            yield cell
    finally:
        engine.stop()


def _ending(ended: Ended, cell: Cell, folder: Path) -> Ending | None:
    """How a task ended, if not well."""
    if ended.code == ExitCode.DONE:
        return None
    if ended.reason:
        return Ending(kind=Kind.FAILED, reason=ended.reason)
    line = _last_words(cell, folder)
    if ended.code == ExitCode.DIVERGED:
        found = re.fullmatch(r"Error: round (\d+): (.*)", line)
        r, reason = (int(found[1]), found[2]) if found else (None, line)
        return Ending(kind=Kind.DIVERGED, round=r, reason=reason)
    return Ending(kind=Kind.FAILED, reason=f"ended with code {ended.code}: {line}")


def _last_words(cell: Cell, folder: Path) -> str:
    log = log_of(cell, folder)
    return children.last_line(log) if log.exists() else "no log"
