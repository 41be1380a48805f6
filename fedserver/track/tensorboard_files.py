"""TensorBoard: a folder of event files for each run."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import text

from common.records.run import RunRecord
from fedserver.track.tracker import Known, Point

LENGTH = struct.Struct("<QI")
"""How a record begins: length of its event, and a checksum of that."""
CHECKSUM_BYTES = 4
SETTINGS = "settings"


class TensorBoardFiles:
    """Each process adds a file; TensorBoard reads all of a folder in their order."""

    def __init__(self, folder: Path, run: RunRecord) -> None:
        self._folder = folder
        self._run = run
        self._writer: EventsWriter | None = None

    def known(self) -> Known:
        """All values in the files, less those that a later process has taken back."""
        found: Known = {}
        for event in _events(self._folder):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                found = {key: value for key, value in found.items() if key[1] < event.step}
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    found[value.tag, event.step] = value.simple_value
        return found

    def go_back(self, r: int) -> None:
        """TensorBoard hides what earlier files have from here on."""
        self.close(finished=False)
        started = SessionLog(status=SessionLog.START)
        self._open().write_event(Event(wall_time=time.time(), step=r, session_log=started))

    def write(self, points: Iterable[Point]) -> None:
        """Adds values."""
        writer = self._writer or self._open()
        for point in points:
            value = Summary.Value(tag=point.name, simple_value=point.value)
            summary = Summary(value=[value])
            writer.write_event(Event(wall_time=point.time, step=point.round, summary=summary))
        writer.flush()

    def _open(self) -> EventsWriter:
        """A new file, behind all others in the order of names; the first one has the settings too."""
        self._folder.mkdir(parents=True, exist_ok=True)
        number = len(_files(self._folder))
        self._writer = EventsWriter(str(self._folder / "events"), f".{number:06d}")
        if number == 0:
            settings = text(SETTINGS, _settings(self._run))
            self._writer.write_event(Event(wall_time=time.time(), summary=settings))
        return self._writer

    def close(self, *, finished: bool) -> None:
        """Ends this process's file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def open_tracker(where: str, run_dir: Path, run: RunRecord) -> TensorBoardFiles:
    """The folder of a run below DIR; the run's id is in its name, so that no two runs share one."""
    name = re.sub(r"[^\w.-]", "_", f"{run.algorithm}-{run.run_id}")
    return TensorBoardFiles(Path(where) / name, run)


def _settings(run: RunRecord) -> str:
    """The settings as code, in which no text of a peer's is markup."""
    return "\n".join(f"    {name} = {value!r}" for name, value in run.settings.items())


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.out.tfevents.*"))


def _events(folder: Path) -> Iterator[Event]:
    for path in _files(folder):
        with path.open("rb") as file:
            size = path.stat().st_size
            # A process that was killed has left half a record at the end.
            while len(head := file.read(LENGTH.size)) == LENGTH.size:
                length, _ = LENGTH.unpack(head)
                if length > size:
                    break
                data = file.read(length)
                try:
                    yield Event.FromString(data)
                except DecodeError:
                    break
                file.read(CHECKSUM_BYTES)
