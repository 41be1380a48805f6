"""Byte streams of TCP connections out of packets: each direction in order, every byte once.

Only what waits for an earlier segment is kept. Bytes that the sniffer missed never come: the gap shows when
the receiver goes on acknowledging bytes behind it, and the direction is then given up.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

from fedwire.pcap.pcapfile import Packet

MAX_WAITING_BYTES = 64 << 20
MAX_WAITING_SEGMENTS = 1 << 16  # Small ones cost more than their bytes.
MAX_WINDOW = 1 << 30  # TCP's own limit; what lies further ahead is no part of the stream.
PATIENCE = 64  # Acknowledgements past a gap; captures of several CPUs are a little out of order.

Endpoint = tuple[bytes, int]
"""Address and port."""

_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_TCP = struct.Struct("!HHIIBB")
_TCP_NUMBER, _FRAGMENT_NUMBER = 6, 44
_EXTENSIONS = {0, 43, 60}  # Hop-by-hop, routing, destination.


class Segment(NamedTuple):
    """One TCP segment of a capture."""

    number: int
    time: float
    source: Endpoint
    target: Endpoint
    seq: int
    ack: int
    flags: int
    data: memoryview  # As captured.
    num_bytes: int  # As sent; more than `data` holds if the snap length cut it.


class UnusableError(Exception):
    """A TCP packet that cannot be used, and why."""


def segment_of(packet: Packet) -> Segment | None:
    """The TCP segment in a packet; None if it carries something else."""
    data, start = packet.data, packet.start
    try:
        version = data[start] >> 4
        if version not in (4, 6):
            return None
        protocol, at, num_bytes = (_ipv4 if version == 4 else _ipv6)(data, start)
        if protocol != _TCP_NUMBER:
            return None
        source_port, target_port, seq, ack, words, flags = _TCP.unpack_from(data, at)
    except (IndexError, struct.error):
        raise UnusableError("it ends inside its IP or TCP header") from None
    # No length: the sender's network card was to cut the packet up, so all there is belongs to it.
    end = start + num_bytes if num_bytes else len(data) + packet.num_cut
    body = at + (words >> 4) * 4
    if words >> 4 < 5 or body > end or at < start + 20:
        raise UnusableError("its IP and TCP lengths contradict each other")
    addresses = data[start + 12 : start + 20] if version == 4 else data[start + 8 : start + 40]
    half = len(addresses) // 2
    source, target = (addresses[:half], source_port), (addresses[half:], target_port)
    payload = memoryview(data)[body:end]
    return Segment(packet.number, packet.time, source, target, seq, ack, flags, payload, end - body)


def _ipv4(data: bytes, start: int) -> tuple[int, int, int]:
    """Protocol, start of its header, and length of the whole packet or 0."""
    first, num_bytes, fragment, protocol = struct.unpack_from("!BxHxxHxB", data, start)
    if protocol == _TCP_NUMBER and fragment & 0x3FFF:
        raise UnusableError("it is an IP fragment")
    return protocol, start + (first & 15) * 4, num_bytes


def _ipv6(data: bytes, start: int) -> tuple[int, int, int]:
    length, protocol = struct.unpack_from("!HB", data, start + 4)
    at = start + 40
    while protocol in _EXTENSIONS or protocol == _FRAGMENT_NUMBER:
        if protocol == _FRAGMENT_NUMBER:
            if data[at] == _TCP_NUMBER and int.from_bytes(data[at + 2 : at + 4]) & 0xFFF9:
                raise UnusableError("it is an IP fragment")
            protocol, at = data[at], at + 8
        else:
            protocol, at = data[at], at + 8 * (data[at + 1] + 1)
    return protocol, at, 40 + length if length else 0


class Direction:
    """Puts what one side sent back in order."""

    def __init__(self) -> None:
        self.open = True
        self.first: int | None = None
        self.offset = 0  # Bytes handed out; all other places are counted from the same start.
        self._next = 0
        self._waiting: dict[int, bytes] = {}
        self._order: list[int] = []
        self._num_waiting_bytes = 0
        self._seen = 0
        self._acked = 0
        self._fin: int | None = None
        self._num_past_gap = 0
        self._cut = False

    def start(self, seq: int) -> None:
        """Sets the number of the first byte, unless it is known already."""
        if self.first is None:
            self.first = self._next = seq & 0xFFFFFFFF

    def add(self, seq: int, segment: Segment) -> Iterator[memoryview]:
        """Takes in a segment, and yields what is now in order."""
        data = segment.data
        ahead = self._ahead(seq)
        if not self.open or ahead > MAX_WINDOW:
            return
        at = self.offset + ahead
        self._seen = max(self._seen, at + segment.num_bytes)
        self._cut |= len(data) < segment.num_bytes
        if segment.flags & _FIN:
            self._fin = at + segment.num_bytes
        if ahead <= 0:
            yield from self._advance(data[-ahead:])
        elif len(data) > len(self._waiting.get(at, b"")):
            self._wait(at, bytes(data))
        while self._order and self._order[0] <= self.offset:
            at = heapq.heappop(self._order)
            waited = self._waiting.pop(at)
            self._num_waiting_bytes -= len(waited)
            yield from self._advance(memoryview(waited)[self.offset - at :])

    def _ahead(self, seq: int) -> int:
        """Distance from the next byte due, negative behind it; numbers wrap at 32 bits."""
        return ((seq - self._next + 0x80000000) & 0xFFFFFFFF) - 0x80000000

    def _advance(self, data: memoryview) -> Iterator[memoryview]:
        if data:
            self.offset += len(data)
            self._next = (self._next + len(data)) & 0xFFFFFFFF
            yield data

    def _wait(self, at: int, data: bytes) -> None:
        if at in self._waiting:
            self._num_waiting_bytes -= len(self._waiting[at])
        else:
            heapq.heappush(self._order, at)
        self._waiting[at] = data
        self._num_waiting_bytes += len(data)

    def acknowledge(self, ack: int) -> None:
        """Notes how far the other side has received this one."""
        ahead = self._ahead(ack) if self.first is not None else 0
        if ahead > 1:  # 1 is a FIN that was seen, or missed without harm.
            self._num_past_gap += 1
            self._acked = self.offset + ahead - (self._fin is not None)
        else:
            self._num_past_gap = self._acked = 0

    def ended(self) -> bool:
        """Whether the FIN is reached."""
        return self._fin is not None and self.offset >= self._fin

    def lost(self) -> bool:
        """Whether bytes are missing that will not come any more."""
        too_many = self._num_waiting_bytes > MAX_WAITING_BYTES or len(self._order) > MAX_WAITING_SEGMENTS
        return too_many or self._num_past_gap > PATIENCE

    def gap(self) -> str:
        """What is missing now, if anything."""
        num_missing = (self._order[0] if self._order else self._seen) - self.offset
        if num_missing <= 0:
            num_missing = self._acked - self.offset
            if num_missing <= 1:  # As in `acknowledge`.
                return ""
        why = "the snap length cut packets: capture with -s 0" if self._cut else "the sniffer missed them"
        return f"{num_missing} bytes are missing after byte {self.offset} ({why})"

    def close(self) -> None:
        """Takes nothing more and keeps nothing."""
        self.open = False
        self._waiting.clear()
        self._order.clear()


class DirectionEvent(NamedTuple):
    """Something that happened to one direction of a connection."""

    connection: TcpConnection
    side: int
    data: memoryview | None  # The next bytes; None at the end.
    gap: str = ""  # At the end: what is missing, if it did not end well.
    why: str = ""  # At the end: what ended it.


class TcpConnection:
    """Two endpoints and what each sends; side 0 is `ends[0]`, whichever role it has."""

    def __init__(self, ends: tuple[Endpoint, Endpoint]) -> None:
        self.ends = ends
        self.directions = (Direction(), Direction())

    def name(self, side: int) -> str:
        """The sender of a direction, ">" and the receiver."""
        return " > ".join(_address(self.ends[k]) for k in (side, 1 - side))

    def begins_anew(self, segment: Segment) -> bool:
        """Whether a SYN opens another connection between the same ports."""
        first = self.directions[segment.source != self.ends[0]].first
        return bool(segment.flags & _SYN) and first not in (None, (segment.seq + 1) & 0xFFFFFFFF)

    def add(self, segment: Segment) -> Iterator[DirectionEvent]:
        """Sorts one segment in."""
        side = int(segment.source != self.ends[0])
        mine, other = self.directions[side], self.directions[1 - side]
        seq = segment.seq
        if segment.flags & _SYN:
            seq += 1
            if segment.flags & _ACK:
                other.start(segment.ack)
        mine.start(seq)
        for data in mine.add(seq, segment):
            yield DirectionEvent(self, side, data)
        if segment.flags & _ACK:
            other.acknowledge(segment.ack)
        for k in (0, 1):
            if segment.flags & _RST:
                yield from self.close(k, "the connection was reset")
            elif self.directions[k].ended():
                yield from self.close(k, "the connection ended")
            elif self.directions[k].lost():
                yield from self.close(k, f"noticed at packet {segment.number}")

    def close(self, side: int, why: str) -> Iterator[DirectionEvent]:
        """Ends a direction, well or not."""
        direction = self.directions[side]
        if direction.open:
            gap = direction.gap()
            direction.close()
            yield DirectionEvent(self, side, None, gap, why)


def _address(end: Endpoint) -> str:
    address = ip_address(end[0])
    return f"[{address}]:{end[1]}" if address.version == 6 else f"{address}:{end[1]}"
