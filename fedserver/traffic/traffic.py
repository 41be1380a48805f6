"""The byte ledger: every message of every call, by round, client, direction, purpose and tensor.

Of each message the payload (bytes of a tensor) and the encoded size (the protobuf message with the payload
in it) are counted; besides, the kernel's count of bytes on each client's connections. A message belongs to
the round it is about while that round is open, and to none before and after.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from google.protobuf.message import Message

from common.access.tcp_counts import Address, can_tell
from common.errors import WireError
from common.records.traffic import DirectionBytes, OpenRoundBytes, RoundTraffic, Socket, TrafficRecord
from common.wire.byte_counts import ByteCounts, Sized
from common.wire.capture import CaptureWriter
from common.wire.chunks import Chunk, Data, M, sealed
from common.wire.messages import (
    CANARY,
    DIRECTIONS,
    UNREADABLE,
    CallFollower,
    CallReader,
    ClassifiedMessage,
    Content,
)
from fedserver.traffic.sockets import Connections, address

SAMPLE_S = 0.25
"""Connections are asked for their bytes at the end of a call, but not more often than this."""


class Traffic:
    """Counts and, if asked to, captures the messages of a run."""

    def __init__(self, is_member: Callable[[str], bool], capture: CaptureWriter | None = None) -> None:
        self._is_member = is_member
        self._capture = capture
        self._numbers = itertools.count()
        self._round = self._number = 0
        """The open round, and the number that headers have for it."""
        self._open = ByteCounts()
        self._rest = ByteCounts()
        """Of closed rounds, and of none."""
        self._outside = ByteCounts()
        self._sums = ByteCounts()
        """The same without tensors, for those who ask meanwhile."""
        self._connections: Connections | None = None
        self._socket_closed: Counter[tuple[str, str]] = Counter()

    def watch(self, port: int) -> None:
        """Lets the connections to this port be counted too, where the kernel can tell."""
        self._connections = Connections(port) if can_tell() else None

    def call(self, rpc: str, peer: str) -> CountedCall:
        """A call whose messages are to be counted."""
        return CountedCall(self, rpc, next(self._numbers), address(peer))

    def open_round(self, r: int, number: int | None = None) -> None:
        """From now on messages about round r, or those of this number instead, are counted in it."""
        self._round, self._number = r, r if number is None else number

    def close_round(self) -> tuple[DirectionBytes, RoundTraffic]:
        """What the round that closes has cost: all clients together, and in detail."""
        r, closed, self._open = self._round, self._open, ByteCounts()
        self._round = self._number = 0
        self._rest.update(closed)
        detail = RoundTraffic(round=r, traffic=closed.detailed(), socket=self._socket_bytes_of_round())
        return closed.by_purpose(), detail

    def _socket_bytes_of_round(self) -> Socket | None:
        if self._connections is None:
            return None
        self._connections.sample()
        since = self._connections.total - self._socket_closed
        self._socket_closed = self._connections.total.copy()
        return _socket_table(since)

    def whole(self) -> TrafficRecord:
        """Everything since the server started, inside and outside of rounds."""
        if self._connections is not None:
            self._connections.sample()
            self._connections.count_strangers()
        total = self._total()
        still_open = OpenRoundBytes(round=self._round, bytes=self._open.by_purpose()) if self._round else None
        return TrafficRecord(
            bytes=total.by_purpose(),
            outside=self._outside.by_purpose(),
            open=still_open,
            socket=None if self._connections is None else _socket_table(self._connections.total),
            traffic=total.detailed(),
        )

    def by_purpose(self) -> DirectionBytes:
        """All bytes since the server started."""
        return self._sums.by_purpose()

    def by_client(self) -> dict[tuple[str, str], tuple[int, int, int | None]]:
        """Payload, encoded and socket bytes since the server started, by client and direction."""
        if self._connections is not None:
            self._connections.sample(at_most_every=SAMPLE_S)
        return {
            key: (*counts, None if self._connections is None else self._connections.total[key])
            for key, counts in self._sums.by_client().items()
        }

    def _total(self) -> ByteCounts:
        total = ByteCounts()
        total.update(self._rest)
        total.update(self._open)
        return total

    def count(self, call: CountedCall, message: ClassifiedMessage) -> None:
        """Counts one message of a call, and captures it."""
        client = message.client if self._is_member(message.client) else ""
        if client and call.peer is not None and self._connections is not None:
            self._connections.belongs_to(call.peer, client)
        r = self._round if message.round == self._number else 0
        up, content, size = message.up, message.content, len(message.data)
        self._add(client, call.rpc, r, up, content, size)
        if self._capture is not None:
            self._capture.write(call.rpc, call.number, replace(message, client=client, round=r))

    def count_unsent(self, reader: CallReader, rpc: str, up: bool, contents: Sized) -> None:
        """Counts messages that were not encoded, because their tensors were handed over in memory."""
        client = reader.client if self._is_member(reader.client) else ""
        r = self._round if reader.round == self._number else 0
        for content, size in contents:
            self._add(client, rpc, r, up, content, size)

    def _add(self, client: str, rpc: str, r: int, up: bool, content: Content, size: int) -> None:
        for counts in (self._open,) if r else (self._rest, self._outside):
            counts.add(client, rpc, up, content, size)
        self._sums.add_bytes((client, DIRECTIONS[up], content.purpose, ""), content.payload, size)

    def progress(self, call: CountedCall) -> int | None:
        """Bytes that have come on the connection of a call; None where that cannot be told."""
        if self._connections is None or call.peer is None:
            return None
        return self._connections.received(call.peer)

    def came_from(self, client: str) -> int | None:
        """Bytes that have come on all connections of a client; None where that cannot be told."""
        self.sample()
        return None if self._connections is None else self._connections.total[client, DIRECTIONS[True]]

    def disconnected(self) -> frozenset[str]:
        """Clients that had a connection and have none now, as far as the kernel can tell."""
        self.sample()
        return frozenset() if self._connections is None else frozenset(self._connections.lost)

    def sample(self) -> None:
        """Asks for the bytes on the connections, if that has not just been done."""
        if self._connections is not None:
            self._connections.sample(at_most_every=SAMPLE_S)


def _socket_table(counts: Counter[tuple[str, str]]) -> Socket:
    return {client: {d: counts[client, d] for d in DIRECTIONS} for client in sorted({c for c, _ in counts})}


class CountedCall:
    """One call on its way: every message of it passes through here, parsed once and counted."""

    def __init__(self, traffic: Traffic, rpc: str, number: int, peer: Address | None) -> None:
        self._traffic = traffic
        self._follower = CallFollower(rpc, self._count)
        self.rpc = rpc
        self.number = number
        self.peer = peer

    def _count(self, message: ClassifiedMessage) -> None:
        self._traffic.count(self, message)

    def __enter__(self) -> CountedCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._follower.close()
        self._traffic.sample()

    def request(self, kind: type[M], data: bytes) -> M:
        """The client's only message; raises a WireError for other bytes."""
        message = self.received(data)
        assert isinstance(message, kind), "the contract says so"
        return message

    def received(self, data: Data) -> Message | Chunk:
        """A message from the client, or one chunk of one; raises a WireError for bytes that are none."""
        reader = self._follower.reader
        try:
            message = reader.read(True, data)
        except WireError:
            self._follower.add(True, data, UNREADABLE)
            raise
        self._follower.add(True, data, reader.learn(True, message))
        return message

    def received_frames(self, data: bytes) -> list[Message | Chunk]:
        """What a message behind a header carries; raises a WireError as well, once all of it is counted."""
        try:
            frames = self._follower.reader.frames(True, data)
        except WireError:
            self._follower.add(True, data, UNREADABLE)
            raise
        found: list[Message | Chunk] = []
        wrong: WireError | None = None
        for frame in frames:
            try:
                found.append(self.received(frame))
            except WireError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong
        return found

    def reply(self, message: Message) -> bytes:
        """A message to the client, encoded."""
        data = sealed(message)
        self._follower.add(False, data, self._follower.reader.learn(False, message))
        return data

    def unsent(self, up: bool, contents: Sized) -> None:
        """Messages that would follow the header, as large as they would be."""
        self._traffic.count_unsent(self._follower.reader, self.rpc, up, contents)

    def sent(self, data: Data, content: Content) -> None:
        """A frame to the client that is encoded already, and known to be this."""
        if self._follower.reader.canary:
            content = replace(content, purpose=CANARY)
        self._follower.add(False, data, content)
