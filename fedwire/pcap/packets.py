"""The gRPC messages in a capture file: capture -> packets -> TCP streams -> HTTP/2 -> messages.

Everything is a chain of generators over one packet at a time, so that a file may be larger than the memory.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedwire.pcap.http2 import MAX_MESSAGE_BYTES, PREFACE, Http2, Http2Message, UndecodableError
from fedwire.pcap.pcapfile import packets
from fedwire.pcap.tcp import DirectionEvent, Endpoint, Segment, TcpConnection, UnusableError, segment_of

MAX_CONNECTIONS = 1 << 14
MAX_HELD_BYTES = 1 << 16  # A server may send its SETTINGS before the client's preface comes, not much more.

_NOTHING = memoryview(b"")
_SYN_ACK = 0x12
_WINDOW_BITS = {"gzip": 31, "deflate": 15}  # How zlib wants to be told which of the two it is.


@dataclass(frozen=True)
class GrpcMessage:
    """One message of one call."""

    time: float
    """Seconds since the epoch: when the packet that completed the message was seen."""
    call: int
    """Number of the call, one HTTP/2 stream of one connection: from 0, in order of appearance in the file."""
    method: str
    """For example /fedpvr.v1.Federation/Join."""
    from_client: bool
    data: bytes
    """Decompressed, without gRPC's 5-byte prefix."""


def grpc_messages(path: Path, port: int | None, problem: Callable[[str], None]) -> Iterator[GrpcMessage]:
    """Every gRPC message of a capture file, in the order in which they were complete.

    `port` is the server's; without it, whoever sends the HTTP/2 preface is a client, and connections without
    one are passed over. `problem` gets one line for everything that cannot be decoded; the rest still comes.
    A file that is no capture raises DataError as soon as the first message is asked for.
    """
    capture = _Capture(port, problem)
    time = 0.0
    for segment in _segments(path, problem):
        time = segment.time
        for message in capture.add(segment):
            yield GrpcMessage(time, *message)
    for message in capture.finish():
        yield GrpcMessage(time, *message)


def _segments(path: Path, problem: Callable[[str], None]) -> Iterator[Segment]:
    """The TCP segments of the file; each reason to skip some is reported once."""
    told: set[str] = set()
    for packet in packets(path, problem):
        try:
            segment = segment_of(packet)
        except UnusableError as error:
            if str(error) not in told:
                told.add(str(error))
                problem(f"packet {packet.number}: {error}; such packets are skipped")
            continue
        if segment:
            yield segment


def server_ports(path: Path) -> list[int]:
    """Ports in a capture file at which a connection was accepted; all of them if none was seen to be."""
    accepting, every = set[int](), set[int]()
    for segment in _segments(path, lambda _: None):
        every |= {segment.source[1], segment.target[1]}
        if segment.flags & _SYN_ACK == _SYN_ACK:
            accepting.add(segment.source[1])
    return sorted(accepting or every)


_Plain = tuple[int, str, bool, bytes]
"""The fields of GrpcMessage behind the time."""


class _Capture:
    """All connections that touch `port`, the longest silent first."""

    def __init__(self, port: int | None, problem: Callable[[str], None]) -> None:
        self._port = port
        self._problem = problem
        self._next_call = itertools.count().__next__
        self._talks: dict[tuple[Endpoint, Endpoint], _Talk] = {}

    def add(self, segment: Segment) -> Iterator[_Plain]:
        source, target = segment.source, segment.target
        if self._port is not None and self._port not in (source[1], target[1]):
            return
        key = (source, target) if source < target else (target, source)
        talk = self._talks.pop(key, None)
        if talk and talk.connection.begins_anew(segment):
            yield from talk.close("its ports were used again")
            talk = None
        talk = self._talks[key] = talk or _Talk(
            TcpConnection(key), self._port, self._next_call, self._problem
        )
        if len(self._talks) > MAX_CONNECTIONS:
            yield from self._talks.pop(next(iter(self._talks))).close("too many connections are open")
        yield from talk.handle(talk.connection.add(segment))

    def finish(self) -> Iterator[_Plain]:
        for talk in self._talks.values():
            yield from talk.close("the capture ended")


class _Talk:
    """One connection: finds out which side is the client, then reads both."""

    def __init__(
        self,
        connection: TcpConnection,
        port: int | None,
        next_call: Callable[[], int],
        problem: Callable[[str], None],
    ) -> None:
        self.connection = connection
        self._strict = port is not None  # Whoever names the port wants to hear why there is nothing.
        self._clients = [side for side in (0, 1) if connection.ends[side][1] != port] or [0, 1]
        self._held = (bytearray(), bytearray())
        self._next_call = next_call
        self._problem = problem
        self._http2: Http2 | None = None
        self._late_end: DirectionEvent | None = None
        """Of the server's direction, kept until the client's has ended."""

    def handle(self, events: Iterator[DirectionEvent]) -> Iterator[_Plain]:
        for event in events:
            if event.data is None:
                yield from self._end(event)
            elif self._http2:
                yield from self._feed(self._http2, event.side, event.data)
            else:
                self._held[event.side].extend(event.data)
                yield from self._decide()

    def close(self, why: str) -> Iterator[_Plain]:
        for side in (0, 1):
            yield from self.handle(self.connection.close(side, why))

    def _decide(self) -> Iterator[_Plain]:
        """Looks for the preface; what has come before it is parsed then."""
        for side in self._clients:
            if self._held[side].startswith(PREFACE):
                self._clients = [side]
                self._http2 = Http2(self._next_call, self._tell)
                yield from self._feed(self._http2, 1 - side, memoryview(self._held[1 - side]))
                yield from self._feed(self._http2, side, memoryview(self._held[side])[len(PREFACE) :])
                self._held = (bytearray(), bytearray())
                return
        possible = any(PREFACE.startswith(self._held[side]) for side in self._clients)
        if not possible or max(map(len, self._held)) > MAX_HELD_BYTES:
            self._ignore()

    def _ignore(self, tell: bool = True) -> None:
        side = self._clients[0]
        if self._strict and tell and any(self._held):
            if self._held[side][:2] == b"\x16\x03":
                why = "the connection is encrypted (TLS)"
            else:
                why = "the start of the connection is not in the capture (no HTTP/2 client preface)"
            self._problem(f"{self.connection.name(side)}: {why}; nothing of it can be decoded")
        for direction in self.connection.directions:
            direction.close()
        self._held = (bytearray(), bytearray())

    def _end(self, event: DirectionEvent) -> Iterator[_Plain]:
        if event.gap and (self._http2 or self._strict):
            name = self.connection.name(event.side)
            self._problem(f"{name}: {event.gap}, {event.why}; the rest of this direction cannot be decoded")
        if not self._http2:
            if event.gap or event.side in self._clients:
                self._ignore(tell=not event.gap)
        elif event.side != self._clients[0] and self.connection.directions[self._clients[0]].open:
            self._late_end = event  # Answers may still wait for their requests.
        else:
            yield from self._finish(self._http2, event)
            if not any(direction.open for direction in self.connection.directions):
                self._http2 = None

    def _finish(self, http2: Http2, event: DirectionEvent) -> Iterator[_Plain]:
        from_client = event.side == self._clients[0]
        if event.gap:
            http2.give_up(from_client)
        else:
            http2.finish(from_client, event.why)
        if from_client:
            yield from self._after_client(http2)

    def _after_client(self, http2: Http2) -> Iterator[_Plain]:
        """Gives the server's direction the chance to go on that it may have waited for."""
        yield from self._feed(http2, 1 - self._clients[0], _NOTHING)
        if self._late_end and not self.connection.directions[self._clients[0]].open:
            yield from self._finish(http2, self._late_end)

    def _feed(self, http2: Http2, side: int, data: memoryview) -> Iterator[_Plain]:
        from_client = side == self._clients[0]
        try:
            for message in http2.feed(from_client, data):
                plain = self._decompressed(message)
                if plain is not None:
                    yield message.call, message.method, message.from_client, plain
        except UndecodableError as error:
            self._tell(from_client, f"byte {http2.offset(from_client)}: {error}; the rest is given up")
            http2.give_up(from_client)
            self.connection.directions[side].close()
        if from_client:
            yield from self._after_client(http2)

    def _decompressed(self, message: Http2Message) -> bytes | None:
        encoding, data = message.encoding, message.data
        if not encoding:
            return data
        plain, why = _inflated(encoding, data)
        if plain is None:
            what = f"call {message.call} ({message.method}): a message of {len(data)} bytes"
            self._tell(message.from_client, f"{what} in {encoding}: {why}")
        return plain

    def _tell(self, from_client: bool, line: str) -> None:
        side = self._clients[0] if from_client else 1 - self._clients[0]
        self._problem(f"{self.connection.name(side)}: {line}")


def _inflated(encoding: str, data: bytes) -> tuple[bytes | None, str]:
    """The message behind a compressed one, or why there is none."""
    if encoding not in _WINDOW_BITS:
        return None, "only gzip and deflate are known"
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        plain = inflater.decompress(data, MAX_MESSAGE_BYTES)
    except zlib.error:
        return None, "it is damaged"
    if inflater.eof:
        return plain, ""
    if inflater.unconsumed_tail:
        return None, f"it would grow to more than {MAX_MESSAGE_BYTES} bytes"
    return None, "its end is missing"
