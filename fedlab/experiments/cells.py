"""One run of an experiment: its settings, its folder, whether it is finished."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.devices.names import CPU, OFF, device_of
from common.errors import RunError
from common.events import Emit
from fedlab.events import RunFinished, RunsPlanned
from fedlab.processes import children
from fedlab.reports.runs import Run, read_run

POLL_S = 0.2


@dataclass(frozen=True)
class Devices:
    """Where cells compute, several at a time; no part of what a cell is."""

    names: tuple[str, ...]
    autocast: str

    def flags(self, k: int) -> list[str]:
        """Of the k-th of so many at a time."""
        return ["--device", device_of(k, self.names), "--autocast", self.autocast]


PROCESSOR_ALONE = Devices((CPU,), OFF)


@dataclass(frozen=True)
class Cell:
    """A simulation by its flags. Equal flags have one folder, so that experiments share finished runs."""

    flags: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Cell:
        """From settings by name; a list becomes a repeated flag, a truth value a switch."""
        flags: list[tuple[str, str]] = []
        for name, value in settings.items():
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                flags.append((flag if value else flag.replace("--", "--no-", 1), ""))
            else:
                flags += [(flag, str(v)) for v in (value if isinstance(value, list | tuple) else [value])]
        return cls(tuple(flags))

    @property
    def key(self) -> str:
        """The folder's name: readable, and different for different flags."""
        pairs = [(flag.removeprefix("--"), value) for flag, value in self.flags if flag != "--data-dir"]
        words = ["-".join(filter(None, pair)) for pair in pairs]
        text = re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(words))
        return text if len(text) <= 150 else f"{text[:130]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def finished(self, folder: Path) -> bool:
        """Whether the run is whole: what is written last is there."""
        return (folder / self.key / "conformal.json").exists()

    def read(self, folder: Path) -> Run:
        """The finished run."""
        return read_run(folder / self.key)

    def arguments(self, folder: Path) -> list[str]:
        """The command line of `fedlab` that makes the run."""
        flags = [part for pair in self.flags for part in pair if part]
        run_dir = ["--run-dir", str(folder / self.key)]
        return ["simulate", *flags, *run_dir]


def run_cells(
    cells: Sequence[Cell], folder: Path, jobs: int, emit: Emit, devices: Devices = PROCESSOR_ALONE
) -> None:
    """Runs what is not finished, several at a time; an interrupted cell starts again the next time."""
    folder.mkdir(parents=True, exist_ok=True)
    unique = list(dict.fromkeys(cells))
    waiting = [cell for cell in unique if not cell.finished(folder)]
    emit(RunsPlanned(finished=len(unique) - len(waiting), total=len(unique)))
    started, total = time.monotonic(), len(waiting)
    for done, cell in enumerate(_run(waiting, folder, jobs, devices), start=1):
        left = (time.monotonic() - started) / done * (total - done)
        emit(RunFinished(key=cell.key, done=done, total=total, seconds_left=left))


def _run(waiting: list[Cell], folder: Path, jobs: int, devices: Devices) -> Iterator[Cell]:
    """Runs cells, and yields each when it has finished."""
    queue = list(waiting)
    running: dict[Cell, subprocess.Popen[bytes]] = {}
    places: dict[Cell, int] = {}
    """Which of so many at a time each is, and so which device it has."""
    try:
        while queue or running:
            while queue and len(running) < jobs:
                cell = queue.pop(0)
                places[cell] = min(set(range(jobs)) - {places[other] for other in running})
                running[cell] = _start(cell, folder, devices.flags(places[cell]))
            for cell, process in list(running.items()):
                if process.poll() is not None:
                    del running[cell]
                    _require_success(cell, folder, process.returncode)
                    yield cell
            time.sleep(POLL_S)
    finally:
        children.stop(running.values())


def _start(cell: Cell, folder: Path, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    shutil.rmtree(folder / cell.key, ignore_errors=True)
    return children.start("fedlab", [*cell.arguments(folder), *flags], folder / f"{cell.key}.log")


def _require_success(cell: Cell, folder: Path, code: int) -> None:
    if code:
        line = children.last_line(folder / f"{cell.key}.log")
        raise RunError(f"run {cell.key} ended with code {code}: {line}")
