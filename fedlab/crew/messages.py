"""What a simulation and its workers say to each other: a line of JSON, and bytes that belong to it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, TypeVar

from common import errors
from common.errors import FedError, RunError
from fedlab.direct.carried import Carried

_LENGTHS = struct.Struct("<QQ")
M = TypeVar("M", bound="Message")
Value = int | str | bool | list[int]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One of the kinds below."""

    KINDS: ClassVar[dict[str, type[Message]]] = {}
    data: bytes = b""

    def __init_subclass__(cls) -> None:
        cls.KINDS[cls.__name__] = cls


@dataclass(frozen=True, kw_only=True)
class Turn(Message):
    """To a worker: take the turn of a client; `data` is its seat, if the worker has not got that before."""

    client: int
    room: int
    last_round: int
    taken: bool
    keeps_state: bool
    held: list[int]
    has_frozen: bool

    @property
    def carried(self) -> Carried:
        """What the client takes along."""
        return carried_in(self)


@dataclass(frozen=True, kw_only=True)
class Done(Message):
    """Of a worker: the turn is over."""

    last_round: int
    taken: bool
    keeps_state: bool
    held: list[int]
    has_frozen: bool


@dataclass(frozen=True, kw_only=True)
class Failed(Message):
    """Of a worker: the client cannot go on."""

    error: str
    """Its class."""
    text: str

    def as_raised(self) -> FedError:
        """What it ended with."""
        found = getattr(errors, self.error, None)
        try:
            known = isinstance(found, type) and issubclass(found, FedError)
            return found(self.text) if known else RunError(self.text)  # type: ignore[misc]
        except TypeError:  # An error that is made of more than a line.
            return RunError(self.text)


@dataclass(frozen=True, kw_only=True)
class Ask(Message):
    """Of a worker: a call of a client, `data` being its request."""

    method: str


@dataclass(frozen=True, kw_only=True)
class Pull(Message):
    """Of a worker: a client asks for a round."""


@dataclass(frozen=True, kw_only=True)
class Push(Message):
    """Of a worker: a client hands in what lies in its room; `data` is the header."""

    room: int
    start: int
    num_bytes: int
    has_payload: bool


@dataclass(frozen=True, kw_only=True)
class Answer(Message):
    """To a worker: the reply to any of these."""


@dataclass(frozen=True, kw_only=True)
class Opened(Message):
    """To a worker: the header of a round, and what follows its tensors, which are in shared memory."""

    header_bytes: int
    slot: int
    sent: int
    has_tensors: bool


def carried_in(message: Turn | Done) -> Carried:
    """What a client takes along."""
    return Carried(
        message.last_round, message.taken, message.keeps_state, tuple(message.held), message.has_frozen
    )


def packed(carried: Carried) -> dict[str, Value]:
    """The same as fields of a message."""
    return asdict(carried) | {"held": list(carried.held)}


def write(fd: int, message: Message) -> None:
    """Sends a message; raises OSError if nobody is there any more."""
    told: dict[str, object] = {
        each.name: getattr(message, each.name) for each in fields(message) if each.name != "data"
    }
    line = json.dumps({"kind": type(message).__name__, **told}).encode()
    rest = memoryview(_LENGTHS.pack(len(line), len(message.data)) + line + message.data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read(fd: int) -> Message:
    """The next message; raises EOFError if there is none."""
    line_bytes, data_bytes = _LENGTHS.unpack(_exactly(fd, _LENGTHS.size))
    told: Mapping[str, Value] = json.loads(_exactly(fd, line_bytes))
    values = {name: value for name, value in told.items() if name != "kind"}
    return Message.KINDS[str(told["kind"])](data=_exactly(fd, data_bytes), **values)


def _exactly(fd: int, num_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < num_bytes:
        piece = os.read(fd, num_bytes - len(found))
        if not piece:
            raise EOFError("the other process has ended")
        found += piece
    return bytes(found)
