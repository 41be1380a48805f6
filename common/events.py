"""What happens in a process, as typed events. Log lines for people, JSON logs and dashboards are listeners.

Event                 the base: who and when; a subclass per kind of thing that happens, with its own fields
Emit                  what code takes that has something to tell: a function of one event
TextLog, JsonLog      listeners that write a line per event
of_run(emit, run)     the same function for events that all belong to one run
of_client(emit, name) the same for events that are all about one client
naming_clients(emit)  the same, with the client's name on every line for people

The events at the end are of code that several packages share; a package has its own in its events.py.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, TextIO

from common.errors import printable
from common.records.form import plain

RED, PLAIN = "\x1b[1;31m", "\x1b[0m"


class Level(IntEnum):
    """How much a person wants to know of an event."""

    DETAIL = 10
    """Shown with --verbose."""
    NOTICE = 20
    WARNING = 30
    """Shown even with --quiet."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened. A subclass adds fields and says in `text` how a person reads it."""

    level: ClassVar[Level] = Level.NOTICE
    alarming: ClassVar[bool] = False
    """Whether a terminal shows it in red."""
    run: str = ""
    """Id of the run, where there is one."""
    round: int = 0
    """The round it is about; 0 for none."""
    client: str = ""
    """Name of the client it is about."""
    reason: str = ""
    """Why, in words for people."""

    @property
    def kind(self) -> str:
        """The class's name as a JSON log has it: `RoundClosed` is round_closed."""
        return self.kind_of()

    @classmethod
    def kind_of(cls) -> str:
        """The same, of a class."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def text(self) -> str:
        """One line for people."""
        raise NotImplementedError

    def values(self) -> dict[str, Any]:
        """The fields by name; of those that every event has, the ones that say something."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value or name not in _COMMON}


@dataclass(frozen=True, kw_only=True)
class Trouble(Event):
    """Something is wrong with a file or a setting, and the process goes on; `reason` says all of it."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return self.reason


_COMMON = frozenset(field.name for field in fields(Event))
Emit = Callable[[Event], None]


def of_run(emit: Emit, run: str) -> Emit:
    """Fills in the run of every event."""
    return lambda event: emit(replace(event, run=run))


def of_client(emit: Emit, client: str) -> Emit:
    """Fills in the client of every event."""
    return lambda event: emit(replace(event, client=client))


def naming_clients(emit: Emit) -> Emit:
    """For several clients that write into one log; programs find the name in every event anyway."""
    return emit.naming_clients() if isinstance(emit, TextLog) else emit


def to_all(*listeners: Emit) -> Emit:
    """Hands every event to all listeners, in this order."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit


def unheard(event: Event) -> None:
    """A listener for those who are not interested."""


class TextLog:
    """Plain lines with the time of day."""

    def __init__(
        self, least: Level = Level.NOTICE, file: TextIO | None = None, *, names_clients: bool = False
    ) -> None:
        self.least = least
        self._file = file
        self._names_clients = names_clients
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Writes an event that is important enough."""
        if event.level >= self.least:
            whose = f"{event.client}: " if self._names_clients and event.client else ""
            with self._lock:
                line, file = f"{whose}{printable(event.text())}", self._file or sys.stdout
                if event.alarming and file.isatty():
                    line = f"{RED}{line}{PLAIN}"
                # In one piece, because other processes may write to the same file.
                with _ignoring_loss_of(self._file):
                    print(f"{time.strftime('%H:%M:%S')} {line}\n", end="", file=file, flush=True)

    def naming_clients(self) -> TextLog:
        """The same, with the name of the client on every line."""
        return TextLog(self.least, self._file, names_clients=True)


class JsonLog:
    """One JSON object a line: time, level, event, its fields, and the text that people would read."""

    def __init__(self, least: Level = Level.NOTICE, file: TextIO | None = None) -> None:
        self._least = least
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Writes an event that is important enough."""
        if event.level < self._least:
            return
        record = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            + f".{time.time_ns() // 10**6 % 1000:03d}Z",
            "level": event.level.name.lower(),
            "event": event.kind,
            **event.values(),
            "text": printable(event.text()),
        }
        with self._lock, _ignoring_loss_of(self._file):
            line = json.dumps(plain(record), default=str, allow_nan=False)
            print(line, file=self._file or sys.stdout, flush=True)


def _ignoring_loss_of(file: TextIO | None) -> AbstractContextManager[object]:
    """Standard output that is full or gone ends no run; who gives a file hears of it."""
    return suppress(OSError) if file is None else nullcontext()


@dataclass(frozen=True, kw_only=True)
class ExamplesLeftOut(Event):
    """Some examples are broken; the others are used."""

    level: ClassVar[Level] = Level.WARNING
    left_out: int
    examples: int
    """How many there are, good and bad."""
    what: str
    """What they are, and what is wrong with those that are left out."""
    named: tuple[str, ...]
    """The first few that are left out."""

    def text(self) -> str:
        others = self.left_out - len(self.named)
        return f"left out {self.left_out} of {self.examples} {self.what}: {', '.join(self.named)}" + (
            f" and {others} others" if others else ""
        )


@dataclass(frozen=True, kw_only=True)
class CaptureCutOff(Event):
    """A capture that is to be continued ends in the middle of a record, as after a crash."""

    level: ClassVar[Level] = Level.WARNING
    path: Path
    dropped_bytes: int
    offset: int
    """Where the capture goes on."""

    def text(self) -> str:
        return (
            f"{self.path}: dropping {self.dropped_bytes} bytes of a record "
            f"that was cut off at byte {self.offset}"
        )


@dataclass(frozen=True, kw_only=True)
class CaptureStopped(Event):
    """A capture cannot be written any further."""

    level: ClassVar[Level] = Level.WARNING
    path: Path

    def text(self) -> str:
        return f"capture {self.path} ends here: {self.reason}; the run goes on"
