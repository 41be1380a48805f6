"""Packets out of a capture file: pcap and pcapng, both byte orders, one packet in memory at a time.

A file that is no capture raises DataError. A damaged one is read up to the damage, which is one problem line:
record headers chain by length, so nothing behind a wrong length can be trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from common.errors import DataError

MAX_PACKET_BYTES = (1 << 18) + (1 << 12)  # tcpdump's largest snap length, and room for link headers.
MAX_BLOCK_BYTES = MAX_PACKET_BYTES + (1 << 16)  # A pcapng block adds options and comments.

_CLASSIC = {  # Magic as it stands in the file: byte order and seconds per tick.
    b"\xd4\xc3\xb2\xa1": ("<", 1e-6),
    b"\xa1\xb2\xc3\xd4": (">", 1e-6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
    b"\xa1\xb2\x3c\x4d": (">", 1e-9),
}
_SECTION = b"\x0a\x0d\x0d\x0a"  # The same in both byte orders.
_NG_ORDER = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _SIMPLE, _ENHANCED = 1, 3, 6
_TSRESOL, _TSOFFSET = 9, 14

_VLAN = {0x8100, 0x88A8, 0x9100}
_IP = {0x0800, 0x86DD}
_LOOPBACK, _ETHERNET, _RAW = {0, 108}, 1, {12, 14, 101, 228, 229}
_SLL, _SLL2 = 113, 276
_KNOWN_LINKS = {*_LOOPBACK, _ETHERNET, *_RAW, _SLL, _SLL2}


class Packet(NamedTuple):
    """One captured IP packet, still inside its link layer frame."""

    number: int  # From 1, as Wireshark and tcpdump count.
    time: float  # Seconds since the epoch.
    data: bytes  # The frame as captured.
    start: int  # Where the IP header begins in `data`.
    num_cut: int  # Bytes that the snap length cut off.


class _Record(NamedTuple):
    time: float
    link: int
    data: bytes
    num_bytes: int  # On the wire.


class _Interface(NamedTuple):
    link: int
    snap: int
    ticks_per_s: int = 1_000_000
    offset_s: int = 0


class _DamagedError(Exception):
    """The rest of the file cannot be read."""


class _Reader:
    """A file read forward only, so that a pipe will do."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.at = 0

    def take(self, num_bytes: int, may_end: bool = False) -> bytes:
        """The next bytes, all of them; nothing if the file may end here and does."""
        try:
            data = self._file.read(num_bytes)
        except OSError as error:
            raise _DamagedError(f"the file cannot be read: {error.strerror}") from None
        if len(data) < num_bytes and (data or not may_end):
            raise _DamagedError(f"the file ends after {len(data)} of {num_bytes} bytes")
        self.at += num_bytes
        return data

    def skip(self, num_bytes: int) -> None:
        """Passes over bytes without ever holding many of them."""
        while num_bytes:
            num_bytes -= len(self.take(min(num_bytes, 1 << 16)))


def packets(path: Path, problem: Callable[[str], None]) -> Iterator[Packet]:
    """Every IP packet of a capture file, in file order."""
    try:
        file = path.open("rb", buffering=1 << 20)
    except OSError as error:
        raise DataError(f"{path}: expected a capture file, got {error.strerror}; check the path") from None
    with file:
        yield from _packets(path, _Reader(file), problem)


def _packets(path: Path, reader: _Reader, problem: Callable[[str], None]) -> Iterator[Packet]:
    records = _records(path, reader)
    number = 0
    unknown: set[int] = set()
    while True:
        try:
            record = next(records, None)
        except _DamagedError as damage:
            problem(f"{path}: packet {number + 1}, byte {reader.at}: {damage}; the rest is not read")
            return
        if record is None:
            return
        number += 1
        if record.link not in _KNOWN_LINKS and record.link not in unknown:
            unknown.add(record.link)
            problem(f"{path}: packet {number}: link type {record.link} is unknown; such packets are skipped")
        start = _ip_start(record.link, record.data)
        if start is not None:
            cut = max(0, record.num_bytes - len(record.data))
            yield Packet(number, record.time, record.data, start, cut)


def _records(path: Path, reader: _Reader) -> Iterator[_Record]:
    try:
        magic = reader.take(4)
    except _DamagedError:
        magic = b""
    if magic in _CLASSIC:
        return _classic_records(reader, *_CLASSIC[magic])
    if magic == _SECTION:
        return _ng_records(reader)
    if magic.startswith(b"\x1f\x8b"):
        found = "gzip data; unpack it first"
    elif not magic:
        found = "a file of less than 4 bytes; capture again with: tcpdump -s 0 -w FILE"
    else:
        found = f"bytes {magic.hex(' ')}; make one with: tcpdump -s 0 -w FILE"
    raise DataError(f"{path} is neither a fedwire capture nor a pcap or pcapng; found {found}")


def _classic_records(reader: _Reader, order: str, tick_s: float) -> Iterator[_Record]:
    # The upper bits of the link field tell of a frame check sequence, which IP's own length cuts off.
    link = struct.unpack(order + "16xI", reader.take(20))[0] & 0xFFFF
    head = struct.Struct(order + "IIII")
    while header := reader.take(head.size, may_end=True):
        seconds, ticks, captured, num_bytes = head.unpack(header)
        if captured > MAX_PACKET_BYTES:
            raise _DamagedError(f"a packet has at most {MAX_PACKET_BYTES} bytes, {captured} announced")
        yield _Record(seconds + ticks * tick_s, link, reader.take(captured), num_bytes)


def _ng_records(reader: _Reader) -> Iterator[_Record]:
    order, interfaces, time = "<", list[_Interface](), 0.0
    kind_bytes = _SECTION  # The caller has read it as the magic.
    while kind_bytes:
        raw_length = reader.take(4)
        if kind_bytes == _SECTION:
            order, interfaces = _byte_order(reader.take(4)), []
        kind, length = struct.unpack(order + "II", kind_bytes + raw_length)
        rest = length - (16 if kind_bytes == _SECTION else 12)
        body = _ng_body(reader, kind, rest)
        if reader.take(4) != raw_length:
            raise _DamagedError(f"the block's two lengths differ, the first is {length}")
        if kind == _INTERFACE:
            interfaces.append(_interface(order, body))
        elif kind == _ENHANCED:
            record = _enhanced(order, interfaces, body)
            time = record.time
            yield record
        elif kind == _SIMPLE:
            yield _simple(order, interfaces, body, time)
        kind_bytes = reader.take(4, may_end=True)


def _byte_order(mark: bytes) -> str:
    if mark not in _NG_ORDER:
        raise _DamagedError(f"no byte order mark in a section header, found {mark.hex(' ')}")
    return _NG_ORDER[mark]


def _ng_body(reader: _Reader, kind: int, num_bytes: int) -> bytes:
    if num_bytes < 0 or num_bytes % 4:
        raise _DamagedError(f"a block of type {kind} cannot have a body of {num_bytes} bytes")
    if kind not in (_INTERFACE, _SIMPLE, _ENHANCED):
        reader.skip(num_bytes)
        return b""
    if num_bytes > MAX_BLOCK_BYTES:
        raise _DamagedError(f"a packet block has at most {MAX_BLOCK_BYTES} bytes, {num_bytes} announced")
    return reader.take(num_bytes)


def _unpack(layout: str, body: bytes) -> tuple[int, ...]:
    if len(body) < struct.calcsize(layout):
        raise _DamagedError(f"a block body of {len(body)} bytes is too short")
    return struct.unpack_from(layout, body)


def _interface(order: str, body: bytes) -> _Interface:
    link, _, snap = _unpack(order + "HHI", body)
    ticks_per_s, offset_s, at = 1_000_000, 0, 8
    while at + 4 <= len(body):
        code, size = struct.unpack_from(order + "HH", body, at)
        value = body[at + 4 : at + 4 + size]
        if code == _TSRESOL and len(value) == 1:
            ticks_per_s = (2 if value[0] & 0x80 else 10) ** (value[0] & 0x7F)
        elif code == _TSOFFSET and len(value) == 8:
            offset_s = struct.unpack(order + "q", value)[0]
        at += 4 + (size + 3) // 4 * 4
    return _Interface(link, snap, ticks_per_s, offset_s)


def _enhanced(order: str, interfaces: list[_Interface], body: bytes) -> _Record:
    index, high, low, captured, num_bytes = _unpack(order + "IIIII", body)
    if index >= len(interfaces):
        raise _DamagedError(f"a packet of interface {index}, but {len(interfaces)} are described")
    if captured > len(body) - 20:
        raise _DamagedError(f"a packet of {captured} bytes in a block body of {len(body)}")
    face = interfaces[index]
    time = face.offset_s + (high << 32 | low) / face.ticks_per_s
    return _Record(time, face.link, body[20 : 20 + captured], num_bytes)


def _simple(order: str, interfaces: list[_Interface], body: bytes, time: float) -> _Record:
    """A packet without a time of its own; it gets that of the packet before it."""
    (num_bytes,) = _unpack(order + "I", body)
    if not interfaces:
        raise _DamagedError("a simple packet block, but no interface is described")
    captured = min(num_bytes, interfaces[0].snap or num_bytes)
    return _Record(time, interfaces[0].link, body[4 : 4 + captured], num_bytes)


def _ip_start(link: int, data: bytes) -> int | None:
    """Where the IP header begins; None if the frame carries something else."""
    if link in _LOOPBACK:
        start: int | None = 4
    elif link in _RAW:
        start = 0
    elif link == _SLL2:
        start = 20 if int.from_bytes(data[:2]) in _IP else None
    elif link in (_ETHERNET, _SLL):
        start = _after_type(data, 12 if link == _ETHERNET else 14)
    else:
        start = None
    return start if start is not None and data[start : start + 1] else None


def _after_type(data: bytes, at: int) -> int | None:
    while (kind := int.from_bytes(data[at : at + 2])) in _VLAN:
        at += 4
    return at + 2 if kind in _IP else None
