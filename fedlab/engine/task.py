"""A cell as work for an engine: a process of `fedlab`, its folder and its log. The same on every machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from common.errors import StateError
from common.records.rounds import read_rounds
from common.records.run import read_run_record
from fedlab.engine.cells import Cell
from fedlab.engine.outcome import log_of
from fedlab.processes import children
from fedlab.processes.children import Child

LOOK_S = 0.5
"""How often rounds.jsonl of a run that may stop at a target is looked into."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What makes one run."""

    key: str
    arguments: tuple[str, ...]
    """Of `fedlab`."""
    run_dir: Path
    log: Path
    stop_at: float | None = None

    @classmethod
    def of(cls, cell: Cell, folder: Path) -> Task:
        """The work of a cell."""
        return cls(
            key=cell.key,
            arguments=tuple(cell.arguments(folder)),
            run_dir=folder / cell.key,
            log=log_of(cell, folder),
            stop_at=cell.stop_at,
        )

    def given(self, flags: tuple[str, ...]) -> Task:
        """The same with further flags, which change nothing of what it is."""
        return replace(self, arguments=(*self.arguments, *flags))


@dataclass(frozen=True)
class Ended:
    """A task has come to its end; what is in its folder says how far it got."""

    key: str
    code: int
    """Of its process."""
    reason: str = ""
    """Why there was none; else its log has the reason."""


class Engine(Protocol):
    """Runs tasks somewhere, several at a time."""

    def submit(self, task: Task) -> None:
        """Takes a task, to run it when there is room."""

    def ended(self) -> Iterator[Ended]:
        """Runs what was taken, and tells of each task as it ends; a task that fails is one of them."""

    def stop(self) -> None:
        """Ends what still runs."""


Start = Callable[[str, Sequence[str], Path], Child]
"""Runs `python -m MODULE ARGUMENT...` in a process of its own with its output in a log."""


def begin(task: Task, start: Start) -> Child:
    """Starts a task's process, which goes on after the last closed round and does not outlive this thread."""
    try:
        read_run_record(task.run_dir)
    except StateError:  # Nothing there, or nothing that a run could go on with.
        shutil.rmtree(task.run_dir, ignore_errors=True)
    task.log.unlink(missing_ok=True)
    return start("fedlab", task.arguments, task.log)


def wait_for(child: Child, task: Task) -> int:
    """Waits for a task's process; one that has reached its target is asked to end."""
    while True:
        try:
            return child.wait(None if task.stop_at is None else LOOK_S)
        except subprocess.TimeoutExpired:
            if _has_reached(task):
                children.stop([child])


def _has_reached(task: Task) -> bool:
    accuracies = [record.accuracy for record in read_rounds(task.run_dir)]
    return task.stop_at is not None and any(a is not None and a >= task.stop_at for a in accuracies)
