"""Tensors on the wire: manifest and chunks of about 1 MiB, checked on arrival.

The sender's chunks are encoded by hand around the tensor's own bytes, one copy and no protobuf object; what
comes out is the ordinary encoding of a frame with a `TensorChunk` in field 2, which `RoundFrame` and
`UpdateFrame` share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import google_crc32c

from common.errors import Fault, WireError
from common.tensors import DTYPES, Flat, Layout, Purpose, TensorSpec
from fedpvr.v1 import tensor_pb2 as pb

PROTOCOL_VERSION = 1
CHUNK_BYTES = 1 << 20
MAX_TENSORS = 20_000
MAX_NAME_BYTES = 512
MAX_DIMS = 16
MAX_TENSOR_BYTES = 1 << 40

_CHUNK_IN_FRAME = b"\x12"  # Field 2, length-delimited.
_DATA_IN_CHUNK = b"\x22"  # Field 4, length-delimited.
_NAME_OF_WIRE = {dtype.wire: name for name, dtype in DTYPES.items()}


def manifest(layout: Layout) -> list[pb.TensorSpec]:
    """Announces every tensor of a layout."""
    return [
        pb.TensorSpec(
            name=spec.name,
            dtype=pb.DType.ValueType(DTYPES[spec.dtype].wire),
            shape=spec.shape,
            purpose=pb.Purpose.ValueType(spec.purpose),
            codec=pb.CODEC_RAW,
            num_bytes=spec.num_bytes,
        )
        for spec in layout.specs
    ]


def read_manifest(announced: Sequence[pb.TensorSpec]) -> Layout:
    """The layout a peer announces, after checking every number in it. Allocates nothing of that size."""
    if len(announced) > MAX_TENSORS:
        raise WireError(
            Fault.MALFORMED, f"at most {MAX_TENSORS} tensors can be announced, got {len(announced)}"
        )
    specs: list[TensorSpec] = []
    seen: set[tuple[int, str]] = set()
    for entry in announced:
        spec = _read_spec(entry)
        if (spec.purpose, spec.name) in seen:
            raise WireError(Fault.MALFORMED, f"announced twice as {spec.purpose.name}", spec.name)
        seen.add((spec.purpose, spec.name))
        specs.append(spec)
    return Layout(specs)


def _read_spec(entry: pb.TensorSpec) -> TensorSpec:
    name = entry.name
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        raise WireError(
            Fault.MALFORMED,
            f"a tensor name has 1 to {MAX_NAME_BYTES} bytes, got {len(name.encode())}",
        )
    if entry.dtype not in _NAME_OF_WIRE:
        raise WireError(Fault.WRONG_DTYPE, f"unknown dtype number {entry.dtype}", name)
    if int(entry.purpose) not in set(Purpose):
        raise WireError(Fault.MALFORMED, f"unknown purpose number {entry.purpose}", name)
    if entry.codec != pb.CODEC_RAW:
        raise WireError(Fault.MALFORMED, f"expected codec RAW, got number {entry.codec}", name)
    if len(entry.shape) > MAX_DIMS:
        raise WireError(Fault.WRONG_SHAPE, f"at most {MAX_DIMS} dimensions, got {len(entry.shape)}", name)
    dtype = _NAME_OF_WIRE[entry.dtype]
    implied = math.prod(entry.shape) * DTYPES[dtype].storage.itemsize
    if implied != entry.num_bytes or implied > MAX_TENSOR_BYTES:
        raise WireError(
            Fault.WRONG_SHAPE,
            f"{dtype} {tuple(entry.shape)} makes {implied} bytes, announced {entry.num_bytes}",
            name,
        )
    return TensorSpec(name, dtype, tuple(entry.shape), Purpose(entry.purpose))


def require_same(came: Layout, expected: Layout) -> None:
    """Raises the most telling error if a peer announced other tensors than the expected ones."""
    if came.specs == expected.specs:
        return
    wanted = {(spec.purpose, spec.name): spec for spec in expected.specs}
    for spec in came.specs:
        match = wanted.pop((spec.purpose, spec.name), None)
        if match is None:
            raise WireError(
                Fault.UNKNOWN_TENSOR, f"no such {spec.purpose.name} tensor in this run", spec.name
            )
        if spec.dtype != match.dtype:
            raise WireError(Fault.WRONG_DTYPE, f"expected {match.dtype}, got {spec.dtype}", spec.name)
        if spec.shape != match.shape:
            raise WireError(Fault.WRONG_SHAPE, f"expected shape {match.shape}, got {spec.shape}", spec.name)
    for spec in wanted.values():
        raise WireError(Fault.MISSING_TENSOR, f"expected as {spec.purpose.name}, not announced", spec.name)
    raise WireError(Fault.MALFORMED, "the tensors are announced in another order than the run's")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def chunk_frame(tensor: int, offset: int, data: Flat) -> bytes:
    """The encoded frame that carries one chunk."""
    checksum = google_crc32c.value(data)
    head = pb.TensorChunk(tensor=tensor, offset=offset, crc32c=checksum).SerializeToString()
    head += _DATA_IN_CHUNK + _varint(data.nbytes)
    return b"".join((_CHUNK_IN_FRAME, _varint(len(head) + data.nbytes), head, data.data))


def chunk_frames(layout: Layout, flat: Flat, first_index: int = 0) -> Iterator[tuple[TensorSpec, int, bytes]]:
    """Every chunk of a flat buffer in order: its tensor, its payload bytes, and the encoded frame.

    `first_index` is the manifest index of the layout's first tensor, for a layout announced behind another.
    """
    for index, spec in enumerate(layout.specs):
        data = layout.raw(flat, index)
        for offset in range(0, spec.num_bytes, CHUNK_BYTES):
            piece = data[offset : offset + CHUNK_BYTES]
            yield spec, piece.nbytes, chunk_frame(first_index + index, offset, piece)


class Receiver:
    """Fills a flat buffer from chunks in order; refuses whatever the manifest does not announce."""

    def __init__(self, layout: Layout, flat: Flat) -> None:
        self._layout = layout
        self._flat = flat
        self._tensor = 0
        self._filled = 0
        self._skip_complete()

    def add(self, chunk: pb.TensorChunk) -> tuple[TensorSpec, int]:
        """Checks one chunk and copies it into its place; returns its tensor and payload bytes."""
        specs = self._layout.specs
        data = chunk.data
        if chunk.tensor >= len(specs):
            raise WireError(
                Fault.UNKNOWN_TENSOR,
                f"chunk for tensor {chunk.tensor}, but {len(specs)} tensors are announced",
            )
        spec = specs[chunk.tensor]
        if not 0 < len(data) <= CHUNK_BYTES:
            raise WireError(
                Fault.MALFORMED, f"a chunk has 1 to {CHUNK_BYTES} bytes, got {len(data)}", spec.name
            )
        if self._tensor == len(specs):
            raise WireError(Fault.TOO_MANY_BYTES, "all announced bytes have come, got more", spec.name)
        end = chunk.offset + len(data)
        if end > spec.num_bytes:
            raise WireError(
                Fault.TOO_MANY_BYTES, f"{spec.num_bytes} bytes announced, chunk ends at {end}", spec.name
            )
        if (chunk.tensor, chunk.offset) != (self._tensor, self._filled):
            due = f"offset {self._filled} of {specs[self._tensor].name}"
            raise WireError(Fault.WRONG_OFFSET, f"expected {due}, got offset {chunk.offset}", spec.name)
        if google_crc32c.value(data) != chunk.crc32c:
            raise WireError(
                Fault.BAD_CHECKSUM,
                f"CRC32C of the chunk at offset {chunk.offset} is wrong; send it again",
                spec.name,
            )
        raw = self._layout.raw(self._flat, chunk.tensor).data
        raw[chunk.offset : chunk.offset + len(data)] = data
        self._filled += len(data)
        self._skip_complete()
        return spec, len(data)

    def finish(self) -> None:
        """Raises unless every announced byte has come."""
        if self._tensor < len(self._layout.specs):
            spec = self._layout.specs[self._tensor]
            raise WireError(
                Fault.TOO_FEW_BYTES,
                f"stream ended after {self._filled} of {spec.num_bytes} bytes",
                spec.name,
            )

    def _skip_complete(self) -> None:
        specs = self._layout.specs
        while self._tensor < len(specs) and self._filled == specs[self._tensor].num_bytes:
            self._tensor += 1
            self._filled = 0
