"""Chunks on arrival: each is checked against what is announced, and put into its place."""

from __future__ import annotations

import google_crc32c

from common.errors import Fault, WireError
from common.tensors.layout import Flat, Layout
from common.wire.chunks import CHUNK_BYTES, START, Chunk, Position


class Receiver:
    """Fills a flat buffer from chunks in order; refuses whatever the manifest does not announce."""

    def __init__(self, layout: Layout, flat: Flat | None = None) -> None:
        """Without a buffer, whoever has it overrides `place`."""
        self._layout = layout
        self._flat = flat
        self._tensor, self._filled = START
        self._skip_complete()

    @property
    def position(self) -> Position:
        """Everything before this has come."""
        return self._tensor, self._filled

    def add(self, chunk: Chunk) -> None:
        """Checks one chunk and puts it into its place."""
        specs = self._layout.specs
        data = chunk.data
        if chunk.tensor >= len(specs):
            # Not UNKNOWN_TENSOR: that is a manifest's fault and final, while this may be a bad link's.
            raise WireError(
                Fault.WRONG_OFFSET,
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
        self.place(self._layout.offsets[chunk.tensor] + chunk.offset, data)
        self._filled += len(data)
        self._skip_complete()

    def place(self, start: int, data: Flat) -> None:
        """Puts checked bytes where they belong in the buffer."""
        assert self._flat is not None, "a receiver without a buffer has a place of its own"
        self._flat[start : start + len(data)] = data

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
