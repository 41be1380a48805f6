"""All attempts of a capture, and the signs that tell why some of them broke off."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from fedpvr.v1 import federation_pb2 as pb
from fedwire.source import Capture, CapturedMessage
from fedwire.timeline.attempts import Attempt, open_download, open_upload

Cell = tuple[int, str, str, str]
"""Round, client, direction and purpose."""


@dataclass(frozen=True)
class Sign:
    """Something that a client or the server said, apart from attempts."""

    kind: str
    """join, pull, resend, going or finished."""
    time_ns: int
    process: int
    after_round: int = 0
    """Of a pull: the last round that the client remembers to be done with."""


@dataclass
class History:
    """What happened, in the order of the capture."""

    attempts: list[Attempt] = field(default_factory=list)
    signs: defaultdict[str, list[Sign]] = field(default_factory=lambda: defaultdict(list))
    """By client."""
    bytes: Counter[Cell] = field(default_factory=Counter)
    """All bytes of the capture."""
    processes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """When each process that wrote the capture was first and last heard of."""
    heard: dict[str, int] = field(default_factory=dict)
    """When the last message from each client passed."""
    unreadable: int = 0
    start_ns: int = 0
    end_ns: int = 0
    messages: int = 0

    @cached_property
    def by_client(self) -> defaultdict[str, list[Attempt]]:
        """The attempts of each client."""
        table: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            table[attempt.client].append(attempt)
        return table

    def seconds(self, time_ns: int) -> float:
        """Since the first message."""
        return round((time_ns - self.start_ns) / 1e9, 6)


def read_history(capture: Capture) -> History:
    """Reads each message once; of chunks no byte is read again."""
    reader = _Reader(capture)
    for message in capture.messages:
        reader.note(message)
    return reader.history


class _Reader:
    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.history = History(messages=len(capture.messages))
        self._open: dict[int, Attempt] = {}
        """By call."""
        self._numbers: Counter[tuple[str, int, bool]] = Counter()

    def note(self, message: CapturedMessage) -> None:
        """Takes in the next message."""
        self._count(message)
        kind = message.content.kind
        if kind == "chunk" and message.call in self._open:
            self._open[message.call].add(message)
        elif kind == "header":
            self._begin(message)
        elif kind == "reply" and message.call in self._open:
            self._end(message, self._open.pop(message.call))
        elif kind == "unreadable":
            self.history.unreadable += 1
        else:
            self._sign(message)

    def _count(self, message: CapturedMessage) -> None:
        history, at = self.history, message.time_ns
        history.start_ns = min(history.start_ns or at, at)
        history.end_ns = max(history.end_ns, at)
        first, last = history.processes.get(message.process, (at, at))
        history.processes[message.process] = min(first, at), max(last, at)
        if message.up and message.client:
            history.heard[message.client] = max(history.heard.get(message.client, 0), at)
        content, where = message.content, (message.round, message.client, message.direction)
        if content.payload:
            history.bytes[*where, content.purpose] += content.payload
        history.bytes[*where, "other"] += message.size - content.payload

    def _begin(self, message: CapturedMessage) -> None:
        data = self._capture.data(message)
        if message.up:
            attempt = open_upload(message, pb.UpdateFrame.FromString(data).header)
        else:
            attempt = open_download(message, pb.RoundFrame.FromString(data).header)
        carried = attempt.client, attempt.round, attempt.up
        self._numbers[carried] += 1
        attempt.number = self._numbers[carried]
        self.history.attempts.append(attempt)
        self._open[message.call] = attempt

    def _end(self, message: CapturedMessage, attempt: Attempt) -> None:
        reply = pb.PushUpdateReply.FromString(self._capture.data(message))
        attempt.answered_ns = message.time_ns
        attempt.reason = reply.message
        if reply.outcome in pb.PushUpdateReply.Outcome.values():
            attempt.outcome = pb.PushUpdateReply.Outcome.Name(reply.outcome)
        if reply.fault in pb.PushUpdateReply.Fault.values():
            attempt.fault = pb.PushUpdateReply.Fault.Name(reply.fault) if reply.fault else ""

    def _sign(self, message: CapturedMessage) -> None:
        kind, after = "", 0
        if message.content.kind in ("resend", "finished"):
            kind = message.content.kind
        elif message.up and message.rpc == "Join":
            kind = "join"
        elif message.up and message.rpc == "PullRound":
            kind = "pull"
            after = pb.PullRoundRequest.FromString(self._capture.data(message)).after_round
        elif message.up and message.rpc == "Renew":
            kind = "going" if pb.RenewRequest.FromString(self._capture.data(message)).going else ""
        if kind:
            sign = Sign(kind, message.time_ns, message.process, after)
            self.history.signs[message.client].append(sign)
