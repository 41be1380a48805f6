"""Several chunks in one message: what a message costs beside its bytes is paid once for all of them.

A bundle is its chunks' frames, one behind the other, in a field that may come more than once. So each part of
it is a frame of its own as well, with as many bytes, and accounts and captures have such frames, whatever
message they came in. A chunk that travels alone has the field that every release knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from common.errors import WireError
from common.tensors.layout import Flat, Layout, Purpose
from common.wire.chunks import (
    ALONE,
    CHUNK_BYTES,
    START,
    TOGETHER,
    Data,
    Position,
    chunk_head,
    read_varint,
    slices,
)

BUNDLE_BYTES = CHUNK_BYTES + (1 << 16)
"""Of a bundle at the most: a large chunk, and small ones beside it. Messages of two large ones bring nothing
that could be measured, and more is sent again after a cut."""
MAX_CHUNKS = 256
"""In a bundle: a server takes in a message at one go, and nobody else gets a word in meanwhile."""


@dataclass(frozen=True)
class _Piece:
    """A chunk that is about to be put into a message."""

    position: Position
    payload: int
    """Bytes of the tensor in it."""
    content: tuple[Data, ...]
    """Its frame, but for the first byte, which says whether it travels alone."""

    @property
    def num_bytes(self) -> int:
        """Of the frame."""
        return 1 + sum(map(len, self.content))


@dataclass(frozen=True)
class Part:
    """The frame of one chunk in a bundle."""

    position: Position
    payload: int
    """Bytes of the tensor in it."""
    data: memoryview

    @property
    def piece(self) -> _Piece:
        """The chunk, for another message."""
        return _Piece(self.position, self.payload, (self.data[1:],))


@dataclass(frozen=True)
class Bundle:
    """A message that carries chunks, and where they lie."""

    data: bytes
    parts: tuple[Part, ...]

    @property
    def position(self) -> Position:
        """Of the first chunk."""
        return self.parts[0].position

    def behind(self, start: Position) -> Bundle | None:
        """What is missing where everything before `start` has come; None: nothing is."""
        if self.position >= start:
            return self
        left = [part.piece for part in self.parts if part.position >= start]
        return _joined(left) if left else None

    def one_by_one(self) -> Iterator[Bundle]:
        """For who takes only one chunk a message."""
        if len(self.parts) == 1:
            yield self
            return
        for part in self.parts:
            yield _joined([part.piece])


def bundles(
    layout: Layout,
    flat: Flat,
    *,
    first_index: int = 0,
    start: Position = START,
    chunk_bytes: int = CHUNK_BYTES,
    checksums: Mapping[Position, int] = MappingProxyType({}),
    most_bytes: int = BUNDLE_BYTES,
) -> Iterator[Bundle]:
    """Every chunk of a buffer in order, from `start` on, in messages of at most so many bytes.

    With 0 each chunk travels alone, as one that is larger always does. `first_index` is the manifest index of
    the layout's first tensor, for a layout announced behind another. `checksums` are those of chunks of
    CHUNK_BYTES that are known. x and buffers are in no message with c: not everybody gets that.
    """

    def pieces() -> Iterator[_Piece]:
        for tensor, offset, data in slices(layout, flat, first_index, start, chunk_bytes):
            known = checksums.get((tensor, offset)) if chunk_bytes == CHUNK_BYTES else None
            head = chunk_head(tensor, offset, data, known)
            yield _Piece((tensor, offset), len(data), (head, data.data))

    def is_control(piece: _Piece) -> bool:
        return layout.specs[piece.position[0] - first_index].purpose is Purpose.CONTROL

    for _, alike in groupby(pieces(), is_control):
        yield from _packed(alike, most_bytes)


def _packed(pieces: Iterable[_Piece], most_bytes: int) -> Iterator[Bundle]:
    waiting: list[_Piece] = []
    taken = 0
    for piece in pieces:
        if waiting and (taken + piece.num_bytes > most_bytes or len(waiting) == MAX_CHUNKS):
            yield _joined(waiting)
            waiting, taken = [], 0
        waiting.append(piece)
        taken += piece.num_bytes
    if waiting:
        yield _joined(waiting)


def _joined(pieces: Sequence[_Piece]) -> Bundle:
    """A message of these chunks, in one copy."""
    tag = ALONE if len(pieces) == 1 else TOGETHER
    data = b"".join(each for piece in pieces for each in (tag, *piece.content))
    view, parts, end = memoryview(data), [], 0
    for piece in pieces:
        start, end = end, end + piece.num_bytes
        parts.append(Part(piece.position, piece.payload, view[start:end]))
    return Bundle(data, tuple(parts))


def frames_in(message: Data) -> list[Data]:
    """The frames that a message counts as: one for each chunk of a bundle, else the message itself.

    Raises for a bundle that ends in the middle of a chunk, has too many, or has something else in it.
    """
    if message[:1] != TOGETHER:
        return [message]
    view, frames, at = memoryview(message), list[Data](), 0
    while at < len(view):
        if len(frames) == MAX_CHUNKS:
            raise WireError.malformed(f"a frame has at most {MAX_CHUNKS} chunks")
        if view[at : at + 1] != TOGETHER:
            raise WireError.malformed("a frame with several chunks has nothing else in it")
        start, at = at, _chunk_end(view, at + 1)
        frames.append(view[start:at])
    return frames


def _chunk_end(view: memoryview, at: int) -> int:
    try:
        length, start = read_varint(view, at)
    except IndexError:
        length, start = len(view), at
    if start + length > len(view):
        raise WireError.malformed("a frame ends in the middle of a chunk")
    return start + length
