"""gRPC messages out of the two byte streams of one HTTP/2 connection.

Both directions are parsed as they come and nothing parsed is kept. Each has its own HPACK table, which every
header block changes: a direction that cannot be followed once cannot be followed any more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hpack import Decoder, HPACKError

from common.errors import printable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_MESSAGE_BYTES = 64 << 20
MAX_HEADER_BYTES = 1 << 16  # gRPC allows 16 KiB of metadata; decoding is quadratic in this.
MAX_TABLE_BYTES = 1 << 20
MAX_METHOD_BYTES = 1 << 10
MAX_OPEN_CALLS = 10_000
MAX_EARLY_BYTES = 1 << 20

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _CONTINUATION = 0, 1, 3, 4, 5, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE = 1
_FRAME = struct.Struct("!BHBBI")


class UndecodableError(Exception):
    """A direction that cannot be followed any further, and why."""


class Http2Message(NamedTuple):
    """One gRPC message."""

    call: int
    method: str
    from_client: bool
    encoding: str  # How the data are compressed; empty if they are not.
    data: bytes


@dataclass
class _Body:
    """What one side sends in one call."""

    encoding: str
    buffer: bytearray = field(default_factory=bytearray)

    def add(self, data: bytearray) -> Iterator[tuple[bool, bytes]]:
        """Takes in a DATA frame; of each message that is complete, whether it is compressed and its bytes."""
        self.buffer += data
        at = 0
        while len(self.buffer) - at >= 5:
            compressed, num_bytes = struct.unpack_from("!BI", self.buffer, at)
            if compressed > 1:
                raise UndecodableError(f"a gRPC message begins with 0 or 1, got {compressed}")
            if num_bytes > MAX_MESSAGE_BYTES:
                raise UndecodableError(
                    f"a message of {num_bytes} bytes, at most {MAX_MESSAGE_BYTES} are read"
                )
            end = at + 5 + num_bytes
            if len(self.buffer) < end:
                break
            yield bool(compressed), bytes(memoryview(self.buffer)[at + 5 : end])
            at = end
        del self.buffer[:at]

    def rest(self) -> str:
        """How much there is of a message that is not complete, if there is one."""
        if len(self.buffer) < 5:
            return f"{len(self.buffer)} of 5 bytes of a message prefix" if self.buffer else ""
        return f"{len(self.buffer) - 5} of {int.from_bytes(self.buffer[1:5])} bytes of a message"


@dataclass
class _Call:
    """One HTTP/2 stream; `bodies` by `from_client`, None where nothing (more) is to be read."""

    number: int
    method: str
    bodies: list[_Body | None] = field(default_factory=lambda: [None, None])
    ended: set[bool] = field(default_factory=set)


class _Half:
    """Parser state of one direction."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.offset = 0
        self.headers = Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self.block = bytearray()
        self.block_of: tuple[int, int, int] | None = None  # Type, flags, stream of an unfinished block.
        self.open = True


class Http2:
    """One connection, from behind the client's preface on."""

    def __init__(self, next_call: Callable[[], int], problem: Callable[[bool, str], None]) -> None:
        self._next_call = next_call
        self._problem = problem  # Called with from_client and a line.
        self._halves = (_Half(), _Half())  # By from_client.
        self._calls: dict[int, _Call] = {}
        self._newest = 0

    def feed(self, from_client: bool, data: memoryview) -> Iterator[Http2Message]:
        """Takes in the next bytes of a direction, and yields the messages they complete.

        An answer waits for its request, since a capture may show the directions a little out of step: after
        the client's direction feed the server's, with nothing new if need be.
        """
        half = self._halves[from_client]
        half.buffer += data
        at = 0
        while len(half.buffer) - at >= _FRAME.size:
            high, low, kind, flags, stream = _FRAME.unpack_from(half.buffer, at)
            stream &= 0x7FFFFFFF
            end = at + _FRAME.size + (high << 16 | low)
            if len(half.buffer) < end:
                break
            early = not from_client and kind == _HEADERS and stream > self._newest
            if early and self._halves[True].open and len(half.buffer) < MAX_EARLY_BYTES:
                break
            if half.offset == 0 and kind != _SETTINGS:
                raise UndecodableError(f"the first HTTP/2 frame is no SETTINGS but of type {kind}")
            payload = half.buffer[at + _FRAME.size : end]
            yield from self._frame(half, from_client, kind, flags, stream, payload)
            half.offset += end - at
            at = end
        del half.buffer[:at]

    def offset(self, from_client: bool) -> int:
        """Where in its direction the frame begins that is being read."""
        return self._halves[from_client].offset + (len(PREFACE) if from_client else 0)

    def give_up(self, from_client: bool) -> None:
        """Ends a direction that cannot be followed; the other one goes on with the calls that are known."""
        half = self._halves[from_client]
        half.open = False
        half.buffer.clear()
        self._halves[not from_client].headers.max_allowed_table_size = MAX_TABLE_BYTES
        for call in self._calls.values():
            call.bodies[from_client] = None
            call.ended.add(from_client)
        self._calls = {stream: call for stream, call in self._calls.items() if len(call.ended) < 2}

    def finish(self, from_client: bool, why: str) -> None:
        """Ends a direction, and reports what it leaves unfinished."""
        for call in self._calls.values():
            self._finish_body(call, from_client, why)
        if rest := len(self._halves[from_client].buffer):
            self._problem(from_client, f"{why} inside an HTTP/2 frame, {rest} bytes are there")
        self.give_up(from_client)

    def _frame(
        self, half: _Half, from_client: bool, kind: int, flags: int, stream: int, payload: bytearray
    ) -> Iterator[Http2Message]:
        if (kind == _CONTINUATION) != (half.block_of is not None):
            raise UndecodableError(f"a frame of type {kind} in the wrong place of a header block")
        if kind == _DATA:
            yield from self._data(from_client, flags, stream, _unpadded(flags, payload))
        elif kind in (_HEADERS, _PUSH_PROMISE):
            before = 4 if kind == _PUSH_PROMISE else 5 if flags & _PRIORITY else 0
            half.block, half.block_of = _unpadded(flags, payload)[before:], (kind, flags, stream)
            self._headers_so_far(from_client, flags)
        elif kind == _CONTINUATION:
            half.block += payload
            self._headers_so_far(from_client, flags)
        elif kind == _RST_STREAM and (call := self._calls.pop(stream, None)):
            for side in (True, False):
                self._finish_body(call, side, "the stream was reset")
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(from_client, payload)

    def _settings(self, from_client: bool, payload: bytearray) -> None:
        # One side's table size bounds the other side's encoder. It is only ever raised here: the encoder may
        # shrink its table later than this frame was seen.
        headers = self._halves[not from_client].headers
        for name, value in struct.iter_unpack("!HI", payload[: len(payload) // 6 * 6]):
            if name == _HEADER_TABLE_SIZE and value > headers.max_allowed_table_size:
                headers.max_allowed_table_size = min(value, MAX_TABLE_BYTES)

    def _headers_so_far(self, from_client: bool, flags: int) -> None:
        half = self._halves[from_client]
        if len(half.block) > MAX_HEADER_BYTES:
            raise UndecodableError(f"a header block of more than {MAX_HEADER_BYTES} bytes")
        if not flags & _END_HEADERS or not half.block_of:
            return
        (kind, first_flags, stream), half.block_of = half.block_of, None
        try:
            fields = {bytes(h[0]): bytes(h[1]) for h in half.headers.decode(bytes(half.block), raw=True)}
        except HPACKError as error:
            raise UndecodableError(f"the headers of stream {stream}: {type(error).__name__}") from None
        if kind == _HEADERS:
            self._headers(from_client, stream, fields)
            if first_flags & _END_STREAM:
                self._end(from_client, stream)

    def _headers(self, from_client: bool, stream: int, fields: dict[bytes, bytes]) -> None:
        is_grpc = fields.get(b"content-type", b"").startswith(b"application/grpc")
        if from_client and b":path" in fields and stream > self._newest:
            self._newest = stream
            if is_grpc:
                self._open_call(stream, fields[b":path"])
        call = self._calls.get(stream)
        # Trailers name no content type; another type than gRPC's is a page of some proxy.
        if call and is_grpc and not call.bodies[from_client] and from_client not in call.ended:
            encoding = printable(fields.get(b"grpc-encoding", b"identity").decode("ascii", "replace"))
            call.bodies[from_client] = _Body(encoding)

    def _open_call(self, stream: int, method: bytes) -> None:
        if len(method) > MAX_METHOD_BYTES or len(self._calls) >= MAX_OPEN_CALLS:
            raise UndecodableError(f"more than {MAX_OPEN_CALLS} open calls, or a method name too long")
        self._calls[stream] = _Call(self._next_call(), printable(method.decode("ascii", "replace")))

    def _data(self, from_client: bool, flags: int, stream: int, data: bytearray) -> Iterator[Http2Message]:
        call = self._calls.get(stream)
        body = call.bodies[from_client] if call else None
        if call and body:
            for compressed, content in body.add(data):
                encoding = body.encoding if compressed else ""
                yield Http2Message(call.number, call.method, from_client, encoding, content)
        if flags & _END_STREAM:
            self._end(from_client, stream)

    def _end(self, from_client: bool, stream: int) -> None:
        if call := self._calls.get(stream):
            self._finish_body(call, from_client, "the stream ended")
            call.ended.add(from_client)
            if len(call.ended) == 2 or not self._halves[not from_client].open:
                del self._calls[stream]

    def _finish_body(self, call: _Call, from_client: bool, why: str) -> None:
        body = call.bodies[from_client]
        call.bodies[from_client] = None
        if body and (rest := body.rest()):
            self._problem(from_client, f"call {call.number} ({call.method}): {why} after {rest}")


def _unpadded(flags: int, payload: bytearray) -> bytearray:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise UndecodableError("the padding of a frame is larger than the frame")
    return payload[1 : len(payload) - payload[0]]
