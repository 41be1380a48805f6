"""Tensors on the wire: chunks of at most 1 MiB, each with a checksum; `receiver` checks them on arrival.

The sender's chunks are encoded by hand around the tensor's own bytes, no protobuf object, and `bundles` puts
them into messages; what comes out is the ordinary encoding of a frame with a `TensorChunk` in field 2, or
several in field 5, which `RoundFrame` and `UpdateFrame` share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError, Message

from common.errors import DamagedError, Fault, WireError
from common.tensors.layout import Flat, Layout
from fedpvr.v1 import federation_pb2
from fedpvr.v1 import tensor_pb2 as pb

PROTOCOL_VERSION = 1
CHUNK_BYTES = 1 << 20

_HEADER_IN_FRAME = b"\x0a"  # Field 1, length-delimited.
ALONE = b"\x12"
"""Opens a frame with one chunk: field 2."""
TOGETHER = b"\x2a"
"""Opens each chunk of a frame with several: field 5."""
_DATA_IN_CHUNK = b"\x22"  # Field 4.
_SEAL_IN_MESSAGE = b"\xfd\xff\x7f"  # Field 262143, four bytes.

M = TypeVar("M", bound=Message)
Data = bytes | memoryview
"""An encoded message, or a part of one that is a message too."""
Position = tuple[int, int]
"""How far a stream of chunks has come: tensor and offset into it."""
START: Position = (0, 0)


def sealed(message: Message) -> bytes:
    """A message of a call, encoded, with the checksum of all its bytes as last field."""
    data = message.SerializeToString()
    checksum: int = google_crc32c.value(data)
    return data + _SEAL_IN_MESSAGE + checksum.to_bytes(4, "little")


def parsed(kind: type[M], data: Data) -> M:
    """A message of this kind; raises a DamagedError for other bytes, and for bytes that were not sent so."""
    name, data = kind.DESCRIPTOR.name, bytes(data)
    mark = data[-7:-4]
    # Only earlier releases send no checksum, and a damaged mark must not make a message look like theirs.
    if sum(came == sent for came, sent in zip(mark, _SEAL_IN_MESSAGE, strict=False)) >= 2:
        data, checksum = data[:-7], int.from_bytes(data[-4:], "little")
        if mark != _SEAL_IN_MESSAGE or google_crc32c.value(data) != checksum:
            raise DamagedError(Fault.BAD_CHECKSUM, f"CRC32C of a {name} is wrong; send it again")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise DamagedError.malformed(f"expected a {name}, got other bytes: {error}") from error


def name_of(names: Callable[[Any], str], number: int) -> str:
    """What an enum's `Name` calls a number; raises a WireError for one that the contract does not have."""
    try:
        return names(number)
    except ValueError as error:
        raise WireError.malformed(str(error)) from error


def varint(value: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def chunk_head(tensor: int, offset: int, data: Flat, checksum: int | None = None) -> bytes:
    """What is in a frame between its first byte and the tensor's; `checksum` is CRC32C, where it is known."""
    if checksum is None:
        checksum = google_crc32c.value(data)
    head = pb.TensorChunk(tensor=tensor, offset=offset, crc32c=checksum).SerializeToString()
    head += _DATA_IN_CHUNK + varint(data.nbytes)
    return varint(len(head) + data.nbytes) + head


def chunk_checksums(layout: Layout, flat: Flat) -> dict[Position, int]:
    """CRC32C of every chunk of a buffer."""
    found = slices(layout, flat, 0, START, CHUNK_BYTES)
    return {(tensor, offset): google_crc32c.value(data) for tensor, offset, data in found}


def slices(
    layout: Layout, flat: Flat, first_index: int, start: Position, chunk_bytes: int
) -> Iterator[tuple[int, int, Flat]]:
    """Tensor, offset and bytes of every chunk in order, from `start` on.

    `first_index` is the manifest index of the layout's first tensor, for a layout announced behind another.
    """
    for index, spec in enumerate(layout.specs):
        position = first_index + index
        data = layout.raw(flat, index)
        for offset in range(start[1] if position == start[0] else 0, spec.num_bytes, chunk_bytes):
            if (position, offset) >= start:
                yield position, offset, data[offset : offset + chunk_bytes]


@dataclass(frozen=True)
class Chunk:
    """A slice of one tensor's bytes, as it came."""

    tensor: int
    offset: int
    crc32c: int
    data: Flat


def read_chunk(frame: Data) -> Chunk | None:
    """The chunk in an encoded `RoundFrame` or `UpdateFrame`; None if something else is in it.

    The usual encoding, the one that `bundles` writes, is read in place; any other goes through protobuf.
    """
    chunk = _read_in_place(frame)
    if chunk is None and frame[:1] != _HEADER_IN_FRAME:
        message = parsed(federation_pb2.RoundFrame, frame)
        c = _only_chunk(message)
        if c is not None:
            return Chunk(c.tensor, c.offset, c.crc32c, np.frombuffer(c.data, np.uint8))
    return chunk


def _only_chunk(message: federation_pb2.RoundFrame) -> pb.TensorChunk | None:
    """The chunk of a frame that has nothing else in it."""
    kind, together = message.WhichOneof("frame"), message.chunks
    if kind == "chunk" and not together:
        return message.chunk
    return together[0] if kind is None and len(together) == 1 else None


def _read_in_place(frame: Data) -> Chunk | None:
    try:
        if frame[:1] not in (ALONE, TOGETHER):
            return None
        length, at = read_varint(frame, 1)
        if at + length != len(frame):
            return None
        tensor = offset = crc32c = 0
        if frame[at] == 0x08:
            tensor, at = read_varint(frame, at + 1)
        if frame[at] == 0x10:
            offset, at = read_varint(frame, at + 1)
        if frame[at] == 0x1D:
            crc32c = int.from_bytes(frame[at + 1 : at + 5], "little")
            at += 5
        if frame[at : at + 1] != _DATA_IN_CHUNK:
            return None
        length, at = read_varint(frame, at + 1)
    except IndexError:
        return None
    whole = at + length == len(frame) and tensor < 1 << 32 and offset < 1 << 64
    return Chunk(tensor, offset, crc32c, np.frombuffer(frame, np.uint8, offset=at)) if whole else None


def read_varint(data: Data, at: int) -> tuple[int, int]:
    """A number that protobuf has written, and where the next field begins; raises IndexError for none."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError
