"""events.jsonl: every event of a run, details too, in the form of `--log-format json`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO

from common.events import Emit, Event, JsonLog, Level, Trouble
from common.live.record import EVENTS


class EventLog:
    """A listener that appends to the file of a run, and goes on there in the next process.

    Nothing waits for the disk, and a disk that is full or gone ends this log and not the run.
    """

    def __init__(self, run_dir: Path, emit: Emit) -> None:
        """`emit` is told if the log ends early."""
        self._path = run_dir / EVENTS
        self._emit = emit
        self._file: TextIO | None = None
        self._write: Emit | None = None
        try:
            self._file = self._path.open("a")
            if _is_torn(self._path):
                self._file.write("\n")
            self._write = JsonLog(Level.DETAIL, self._file)
        except OSError as error:
            self._give_up(error)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, event: Event) -> None:
        """Writes an event."""
        if self._write is None:
            return
        try:
            self._write(event)
        except OSError as error:
            self._give_up(error)

    def _close(self) -> None:
        self._write = None
        if self._file is not None:
            with suppress(OSError):  # It tries once more to write what could not be written.
                self._file.close()

    def _give_up(self, error: OSError) -> None:
        self._close()
        self._emit(Trouble(reason=f"{self._path} ends here: {error.strerror}; the run goes on"))


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end, as after a power cut: the next one must not be a part of it."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"
