"""Runs cells that have not run yet, several at a time, and writes down how each ended."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.events import Emit
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Ending, Kind, Outcome, log_of, note, outcome_of
from fedlab.events import RunFinished, RunsPlanned
from fedlab.processes import children

POLL_S = 0.2
DIVERGED = re.compile(r"Error: round (\d+): .*; lower --eta-l")
"""The last line of a run whose model is not finite any more."""


def run_cells(cells: Sequence[Cell], folder: Path, engine: EngineChoice, emit: Emit) -> None:
    """Runs what has neither finished nor diverged. No cell ends the others: `outcome_of` tells of each."""
    folder.mkdir(parents=True, exist_ok=True)
    unique = list(dict.fromkeys(cells))
    waiting = [cell for cell in unique if _is_due(outcome_of(cell, folder))]
    emit(RunsPlanned(finished=len(unique) - len(waiting), total=len(unique)))
    started, total = time.monotonic(), len(waiting)
    for done, cell in enumerate(_run(waiting, folder, engine.jobs), start=1):
        left = (time.monotonic() - started) / done * (total - done)
        ended = outcome_of(cell, folder)
        assert ended is not None, "it has just been written down"
        emit(RunFinished(key=cell.key, outcome=ended.text(), done=done, total=total, seconds_left=left))


def _is_due(outcome: Outcome | None) -> bool:
    return outcome is None or outcome.kind is Kind.FAILED


def _run(waiting: list[Cell], folder: Path, jobs: int) -> Iterator[Cell]:
    """Runs cells, and yields each when it has ended and that is written down."""
    queue = list(waiting)
    running: dict[Cell, subprocess.Popen[bytes]] = {}
    try:
        while queue or running:
            while queue and len(running) < jobs:
                cell = queue.pop(0)
                running[cell] = _start(cell, folder)
            for cell, process in list(running.items()):
                if process.poll() is not None:
                    del running[cell]
                    note(cell, folder, _ending(process.returncode, log_of(cell, folder)))
                    yield cell
            time.sleep(POLL_S)
    finally:
        children.stop(running.values())


def _start(cell: Cell, folder: Path) -> subprocess.Popen[bytes]:
    note(cell, folder, None)
    shutil.rmtree(folder / cell.key, ignore_errors=True)
    return children.start("fedlab", cell.arguments(folder), log_of(cell, folder))


def _ending(code: int, log: Path) -> Ending | None:
    """How a process ended, if not well."""
    if code == 0:
        return None
    line = children.last_line(log)
    if found := DIVERGED.match(line):
        return Ending(kind=Kind.DIVERGED, round=int(found[1]), reason=line.removeprefix("Error: "))
    return Ending(kind=Kind.FAILED, reason=f"ended with code {code}: {line}")
