"""Changes to inputs that keep their structure, so that what is changed lies deeper than a length or checksum.

A mutator takes the bytes, a source of randomness and the plain mutator for what has no structure. The same
ones serve the coverage-guided runner, whose plain mutator is libFuzzer's, and the tests, which use `damaged`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import google_crc32c

from common.wire.capture import MAGIC
from common.wire.chunks import varint

Plain = Callable[[bytes], bytes]
Mutator = Callable[[bytes, Random, Plain], bytes]
Split = Callable[[bytes], list[bytes]]
Join = Callable[[list[bytes]], bytes]

_VALUES: list[Any] = [None, True, 0, -1, 1.5, 1e999, 2**63, 10**400, "", "1", "x" * 99, [], {}, [[]], {"": 0}]


def damaged(data: bytes, random: Random) -> bytes:
    """Flips, cuts, repeats or overwrites something."""
    if not data:
        return random.randbytes(random.randint(1, 8))
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice((1, 2, 4, 8, 64, len(data))))
    match random.randrange(5):
        case 0:
            return data[:start] + bytes([data[start] ^ 1 << random.randrange(8)]) + data[start + 1 :]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:end] + data[start:end] + data[end:]
        case 3:
            return data[:start] + bytes([random.choice((0, 127, 255))]) * (end - start) + data[end:]
    at = random.randrange(len(data))
    return data[:start] + data[at : at + 64] + data[start:]


def anything(data: bytes, random: Random, plain: Plain) -> bytes:
    """Bytes without a structure."""
    return plain(data)


def pieces(split: Split, join: Join, inner: Callable[[], Mutator]) -> Mutator:
    """Mostly changes one piece and puts them all together again; may drop, repeat or swap pieces."""

    def mutated(data: bytes, random: Random, plain: Plain) -> bytes:
        try:
            parts = split(data)
        except (IndexError, ValueError, struct.error):
            return plain(data)
        if not parts or random.random() < 0.1:
            return plain(data)
        k, other = random.randrange(len(parts)), random.randrange(len(parts))
        match random.randrange(10):
            case 0:
                del parts[k]
            case 1:
                parts.insert(other, parts[k])
            case 2:
                parts[k], parts[other] = parts[other], parts[k]
            case _:
                parts[k] = inner()(parts[k], random, plain)
        return join(parts)

    return mutated


def script(data: bytes) -> list[bytes]:
    """Any bytes as a list of pieces, each behind its length in two bytes; the last may be shorter.

    Targets that take several messages or files take them in this form.
    """
    parts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        parts.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return parts


def scripted(parts: list[bytes]) -> bytes:
    """The bytes that `script` reads as these pieces."""
    return b"".join(min(len(part), 0xFFFF).to_bytes(2, "little") + part[:0xFFFF] for part in parts)


def _varint_end(data: bytes, at: int) -> int:
    while data[at] >= 0x80:
        at += 1
    return at + 1


def _fields(data: bytes) -> list[bytes]:
    """A protobuf message as its encoded fields."""
    parts, at = [], 0
    while at < len(data):
        tag, content = _field(data[at:])
        size = len(tag) + len(content) + (_length_bytes(data, at + len(tag)) if tag[0] & 7 == 2 else 0)
        parts.append(data[at : at + size])
        at += size
    return parts


def _length_bytes(data: bytes, at: int) -> int:
    return _varint_end(data, at) - at


def _field(data: bytes) -> list[bytes]:
    """The first field: its tag, and its content without the length."""
    at = _varint_end(data, 0)
    tag, kind = data[:at], data[0] & 7
    if kind == 0:
        return [tag, data[at : _varint_end(data, at)]]
    if kind in (1, 5):
        return [tag, data[at : at + (8 if kind == 1 else 4)]]
    end = _varint_end(data, at)
    size = sum((byte & 0x7F) << 7 * k for k, byte in enumerate(data[at:end]))
    if kind != 2 or end + size > len(data):
        raise ValueError("no protobuf")
    return [tag, data[end : end + size]]


def _field_again(parts: list[bytes]) -> bytes:
    tag, content = (*parts, b"", b"")[:2]
    length = varint(len(content)) if tag and tag[0] & 7 == 2 else b""
    return tag + length + content


def _records(data: bytes) -> list[bytes]:
    """The bodies of a capture file's records."""
    parts, at = [], len(MAGIC)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        parts.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return parts


def _records_again(parts: list[bytes]) -> bytes:
    heads = (struct.pack("<II", len(part), google_crc32c.value(part)) for part in parts)
    return MAGIC + b"".join(head + part for head, part in zip(heads, parts, strict=True))


def _packets(data: bytes) -> list[bytes]:
    """A pcap file of the little-endian kind: its header, then its packets."""
    parts, at = [data[:24]], 24
    while at < len(data):
        size = struct.unpack_from("<8xI", data, at)[0]
        parts.append(data[at + 16 : at + 16 + size])
        at += 16 + size
    return parts


def _packets_again(parts: list[bytes]) -> bytes:
    heads = (struct.pack("<IIII", 1000, k, len(part), len(part)) for k, part in enumerate(parts[1:]))
    return b"".join([*parts[:1], *(head + part for head, part in zip(heads, parts[1:], strict=True))])


def _segment(data: bytes) -> list[bytes]:
    """An IPv4 packet: both headers, then what TCP carries."""
    end = (data[0] & 15) * 4
    end += (data[end + 12] >> 4) * 4
    return [data[:end], data[end:]]


def _segment_again(parts: list[bytes]) -> bytes:
    head, content = (*parts, b"", b"")[:2]
    return head[:2] + struct.pack("!H", (len(head) + len(content)) & 0xFFFF) + head[4:] + content


def _http2_frames(data: bytes) -> list[bytes]:
    """HTTP/2 frames without their lengths."""
    parts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3])
        parts.append(data[at + 3 : at + 9 + size])
        at += 9 + size
    return parts


def _http2_frames_again(parts: list[bytes]) -> bytes:
    return b"".join(max(len(part) - 6, 0).to_bytes(3) + part for part in parts)


def _safetensors(data: bytes) -> list[bytes]:
    """Header and tensors of a safetensors file."""
    end = 8 + int.from_bytes(data[:8], "little")
    return [data[8:end], data[end:]]


def _safetensors_again(parts: list[bytes]) -> bytes:
    header, rest = (*parts, b"", b"")[:2]
    return len(header).to_bytes(8, "little") + header + rest


def json_value(data: bytes, random: Random, plain: Plain) -> bytes:
    """Puts another value somewhere into a JSON document, also into one that is a string of another."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return plain(data)
    return plain(data) if random.random() < 0.1 else json.dumps(_other_value(value, random, plain)).encode()


def _other_value(value: Any, random: Random, plain: Plain) -> Any:
    if isinstance(value, dict | list) and value and random.random() < 0.9:
        key = random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
        if random.random() < 0.1:
            del value[key]
        else:
            value[key] = _other_value(value[key], random, plain)
        return value
    if isinstance(value, str) and value[:1] in ("{", "[") and random.random() < 0.8:
        return json_value(value.encode(), random, plain).decode(errors="replace")
    return random.choice(_VALUES)


def json_line(data: bytes, random: Random, plain: Plain) -> bytes:
    """The same in one line of several."""
    lines = data.split(b"\n")
    k = random.randrange(len(lines))
    lines[k] = json_value(lines[k], random, plain)
    return b"\n".join(lines)


field: Mutator = pieces(_field, _field_again, lambda: message)
message: Mutator = pieces(_fields, b"".join, lambda: field)
tagged_message = pieces(lambda data: [data[:1], data[1:]], b"".join, lambda: message)
"""A byte that a target takes for itself, and a message."""
messages = pieces(script, scripted, lambda: tagged_message)
capture = pieces(_records, _records_again, lambda: message)
http2_frames = pieces(_http2_frames, _http2_frames_again, lambda: anything)
http2_sides = pieces(
    script, scripted, lambda: pieces(lambda data: [data[:1], data[1:]], b"".join, lambda: http2_frames)
)
packets = pieces(_packets, _packets_again, lambda: pieces(_segment, _segment_again, lambda: http2_frames))
safetensors = pieces(_safetensors, _safetensors_again, lambda: json_value)
json_files = pieces(script, scripted, lambda: json_line)
files = pieces(script, scripted, lambda: anything)
