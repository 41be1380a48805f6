"""Says what each message of a call is for.

A capture file and a packet capture have only the bytes of messages, and are read by `CallReader.note`. A
server knows what it sends and parses what it receives anyway: it hands the messages themselves to the same
reader, so that its byte ledger and a capture cannot disagree on what a message is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message

from common.errors import WireError
from common.tensors.layout import Purpose
from common.wire.bundles import frames_in
from common.wire.calls import CALLS
from common.wire.chunks import Chunk, Data, parsed, read_chunk
from fedpvr.v1.tensor_pb2 import TensorSpec

DIRECTIONS = ("down", "up")
CANARY, FROZEN = "canary", "frozen"
"""The purpose of all tensors of a rehearsal, and of tensors that are sent once."""
PURPOSES = ("model", "buffer", "control", FROZEN, "other")
"""Of what passes in rounds."""
PURPOSE_NAMES: dict[int, str] = {
    Purpose.MODEL: "model",
    Purpose.BUFFER: "buffer",
    Purpose.CONTROL: "control",
    Purpose.CLIENT_CONTROL: "control",
    Purpose.FROZEN: "frozen",
}


_MARKS = ("canary", "canary_pull_seconds")
"""Fields that only the headers of a rehearsal have."""


@dataclass(frozen=True)
class Content:
    """What one message is."""

    kind: str
    """request or reply; in a stream of frames header, chunk, finished or resend; unreadable."""
    purpose: str = "other"
    tensor: str = ""
    payload: int = 0
    """Bytes that are a tensor's; the rest of the message is its envelope."""


UNREADABLE = Content("unreadable")


def chunk_content(purpose: int, tensor: str, payload: int) -> Content:
    """What a chunk of an announced tensor is; a purpose that this release does not know is `other`."""
    return Content("chunk", PURPOSE_NAMES.get(purpose, "other"), tensor, payload)


def is_canary(header: Message) -> bool:
    """Whether a round or an update is of a rehearsal."""
    return any(field.name in _MARKS for field, _ in header.ListFields())


def is_gradient(header: Message) -> bool:
    """Whether a round asks for a gradient at x before round 1, or an update is one: it took no step."""
    asks, steps = getattr(header, "gradient_only", False), getattr(header, "steps", 1)
    return bool(asks or (steps == 0 and getattr(header, "tensors", ())))


def is_evaluation(header: Message) -> bool:
    """Whether a round asks for an evaluation and nothing else."""
    return bool(getattr(header, "evaluation_only", False))


@dataclass(frozen=True)
class ClassifiedMessage:
    """One message of a call, once it is clear what it is and whose."""

    time_ns: int
    up: bool
    data: Data
    content: Content
    client: str
    round: int


class CallFollower:
    """Follows one call and hands on each message as soon as its client, run and round are known.

    Some requests do not tell them: those messages wait for the answer.
    """

    def __init__(self, rpc: str, hand_on: Callable[[ClassifiedMessage], None]) -> None:
        self.reader = CallReader(rpc)
        self._hand_on = hand_on
        self._held: list[tuple[int, Data, Content]] = []

    def note(self, up: bool, data: Data, time_ns: int = 0) -> None:
        """Takes in the next message, of which only the bytes are known; of a bundle each chunk."""
        try:
            frames = self.reader.frames(up, data)
        except WireError:
            self.add(up, data, UNREADABLE, time_ns)
            return
        for frame in frames:
            self.add(up, frame, self.reader.note(up, frame), time_ns)

    def add(self, up: bool, data: Data, content: Content, time_ns: int = 0) -> None:
        """Takes in the next message, which the reader has seen already."""
        time_ns = time_ns or time.time_ns()
        if up and self.reader.awaits_reply:
            self._held.append((time_ns, data, content))
            return
        self.close()
        self._pass(time_ns, up, data, content)

    def close(self) -> None:
        """Hands on what waits for an answer that will not come."""
        for time_ns, data, content in self._held:
            self._pass(time_ns, True, data, content)
        self._held.clear()

    def _pass(self, time_ns: int, up: bool, data: Data, content: Content) -> None:
        reader = self.reader
        self._hand_on(ClassifiedMessage(time_ns, up, data, content, reader.client, reader.round))


@dataclass(frozen=True)
class _Form:
    """What the contract says of the messages in one direction of a call."""

    kind: type[Message]
    framed: bool
    """Each is one of several things: a header, a chunk and so on."""
    tells: frozenset[str]
    """Of client, round and run_id."""


def _form(kind: type[Message], up: bool) -> _Form:
    framed = "frame" in kind.DESCRIPTOR.oneofs_by_name
    teller: Any = kind.DESCRIPTOR.fields_by_name["header"].message_type if framed else kind.DESCRIPTOR
    facts = {"client", "round", "run_id"} if up or framed else {"run_id"}
    return _Form(kind, framed, frozenset(fact for fact in facts if fact in teller.fields_by_name))


_FORMS = {call.name: (_form(call.reply, False), _form(call.request, True)) for call in CALLS.values()}


class CallReader:
    """Follows one call. `client`, `round` and `run_id` are known once a message has told them.

    Which messages tell them follows from the contract: a request, or the header of a stream, by fields of
    these names, and a reply the run. A status tells a round too, but is not about it.
    """

    def __init__(self, rpc: str) -> None:
        self._forms = _FORMS.get(rpc)
        self._tensors: Sequence[TensorSpec] = ()
        self.client = ""
        self.round = 0
        self.run_id = ""
        self.canary = False
        """Whether the tensors of this call are those of a rehearsal."""

    @property
    def awaits_reply(self) -> bool:
        """Whether only the answer tells the run or the round that a request belongs to."""
        return self._forms is not None and not self._forms[False].tells <= self._forms[True].tells

    def frames(self, up: bool, data: Data) -> list[Data]:
        """What the next message counts as; raises a WireError for a bundle that is none."""
        return frames_in(data) if self._forms is not None and self._forms[up].framed else [data]

    def note(self, up: bool, data: Data) -> Content:
        """Takes in the bytes of the next message. Refuses none: what cannot be understood is unreadable."""
        if self._forms is None:
            return Content("request" if up else "reply")
        try:
            return self.learn(up, self.read(up, data))
        except WireError:
            return UNREADABLE

    def read(self, up: bool, data: Data) -> Message | Chunk:
        """The next message, parsed; raises a WireError for bytes that are not the call's."""
        assert self._forms is not None, "only calls of the contract are read"
        form = self._forms[up]
        return (read_chunk(data) if form.framed else None) or parsed(form.kind, data)

    def learn(self, up: bool, message: Message | Chunk) -> Content:
        """Takes in the next message, parsed or about to be sent."""
        assert self._forms is not None, "only calls of the contract are read"
        if isinstance(message, Chunk):
            if message.tensor >= len(self._tensors):
                return Content("chunk")
            spec = self._tensors[message.tensor]
            content = chunk_content(spec.purpose, spec.name, len(message.data))
            return replace(content, purpose=CANARY) if self.canary else content
        form, kind, teller = self._forms[up], "request" if up else "reply", message
        if form.framed:
            kind = message.WhichOneof("frame") or UNREADABLE.kind
            if kind != "header":
                return Content(kind)
            teller = getattr(message, kind)
            self._tensors = getattr(teller, "tensors", ())
            self.canary = is_canary(teller)
        for name in form.tells:
            setattr(self, name, getattr(teller, name))
        return Content(kind)
