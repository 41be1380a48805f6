"""The runs of a folder, a row each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from common.errors import ConfigError, FedError, LaterReleaseError, printable
from common.live.record import LIVE
from common.records.run import CONFIG
from fedserver.console.directory import Directory
from fedserver.console.frame import FINISHED, STOPPED, Frame
from fedserver.console.screen import size
from fedserver.console.tables import MOST_COLUMNS

RUNNING, DAMAGED, LATER = "running", "damaged", "later release"
_STYLES = {RUNNING: "green", STOPPED: "yellow", DAMAGED: "bold red", LATER: "yellow"}


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run of a folder."""

    path: str
    state: str
    """running, finished, stopped; damaged, or written by a later release: `problem` says how."""
    run_id: str = ""
    algorithm: str = ""
    model: str = ""
    dataset: str = ""
    round: int = 0
    rounds: int = 0
    accuracy: float | None = None
    bytes: int = 0
    started: float | None = None
    """When config.json or the last process began, in seconds since 1970."""
    problem: str = ""


def runs(folder: Path) -> list[ListedRun]:
    """The run directories in a folder, or the folder itself if it is one; the newest last."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; runs are in the folder that --run-dir was in, often runs")
    found = [_run(path) for path in _directories(folder)]
    return sorted(found, key=lambda run: (run.started or 0.0, run.path))


def _directories(folder: Path) -> Iterator[Path]:
    for path in (folder, *sorted(folder.iterdir())):
        if (path / CONFIG).is_file() or (path / LIVE).is_file():
            yield path


def _run(path: Path) -> ListedRun:
    try:
        frame = Directory(path).now()
    except FedError as error:
        state = LATER if isinstance(error, LaterReleaseError) else DAMAGED
        return ListedRun(path=str(path), state=state, problem=str(error))
    return ListedRun(
        path=str(path),
        state=frame.phase if frame.over else RUNNING,
        run_id=frame.run_id,
        algorithm=frame.algorithm,
        model=frame.model,
        dataset=frame.dataset,
        round=frame.round,
        rounds=frame.rounds,
        accuracy=frame.accuracy,
        bytes=frame.total_bytes,
        started=_started(path, frame),
    )


def _started(path: Path, frame: Frame) -> float | None:
    """Runs of earlier releases have only the time of a file."""
    return frame.started if frame.started is not None else (path / CONFIG).stat().st_mtime


def as_json(found: Sequence[ListedRun]) -> str:
    """All rows as one document."""
    return json.dumps([vars(run) for run in found], indent=2)


def show(found: Sequence[ListedRun]) -> None:
    """Prints a table in which no cell is broken in two."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("run", "id", "algorithm", "model", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("round", "accuracy", "bytes", "started"):
        table.add_column(title, no_wrap=True, justify="right")
    for run in found:
        table.add_row(
            Text(printable(Path(run.path).name or run.path)),
            *map(Text, map(printable, (run.run_id, run.algorithm, run.model))),
            Text(run.state, "" if run.state == FINISHED else _STYLES[run.state]),
            f"{run.round}/{run.rounds}",
            "-" if run.accuracy is None else f"{run.accuracy:.2%}",
            size(run.bytes),
            "-" if run.started is None else time.strftime("%m-%d %H:%M", time.localtime(run.started)),
        )
    console = Console(markup=False)
    needed = Measurement.get(console, console.options.update(max_width=MOST_COLUMNS), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
    for run in found:
        if run.problem:
            console.print(f"{run.path}: {run.problem}", highlight=False, soft_wrap=True)
