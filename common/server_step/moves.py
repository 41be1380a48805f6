"""What an update changes: y_i - x, the same of buffers, and c_i+ - c_i, in float64. Pure.

Whole tensors are never copied: moves come block by block.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from common.tensors.layout import (
    Array,
    Flat,
    Float64,
    Layout,
    Purpose,
    from_float64,
    to_float64,
)
from common.tensors.mapped_files import Read

BLOCK = 1 << 15
"""Elements handled at a time: so few that those of x, an update and the sums stay in a core's cache."""
ROW = 1 << 9
"""Elements in a row of the table of a sum of squares: its columns' sums stay in the innermost cache."""
Use = Callable[[slice, Float64, Float64], None]
"""Takes a piece of a sum of moves, and as much room for its own work; both are its own until it returns."""
QUIETLY = np.errstate(over="ignore", invalid="ignore")
"""A client may send numbers whose squares or sums are too large; whoever closes the round looks for those."""


class Moves:
    """The moves of updates that answer one broadcast."""

    def __init__(self, layout: Layout, broadcast: Flat) -> None:
        """`broadcast` is x, the buffers and c as clients saw them, laid out as every update is."""
        self._layout = layout
        self._broadcast = broadcast
        controls = layout.indices(Purpose.CONTROL)
        self._variates = Layout(layout.specs[k] for k in controls)
        self._position = {at: to for to, at in enumerate(controls)}

    def base(self, index: int, c_i: Flat | None) -> Array:
        """What a tensor of an update is compared with: x or, for c_i+, the variate before (None: zero)."""
        if index not in self._position:
            return self._layout.array(self._broadcast, index).reshape(-1)
        return self.variate(index, c_i)

    def variate(self, index: int, c_i: Flat | None) -> Array:
        """The tensor of a client's variate that belongs to a tensor of c (None: zero)."""
        if c_i is None:
            return np.zeros_like(self._layout.array(self._broadcast, index)).reshape(-1)
        return self._variates.array(c_i, self._position[index]).reshape(-1)

    def blocks(
        self, values: Flat, c_i: Flat | None, *purposes: Purpose
    ) -> Iterator[tuple[int, slice, Float64]]:
        """The moves of an update's tensors with these purposes, with the tensor's index and the place in it.

        All are written to one buffer: each is good until the next one is asked for.
        """
        buffer: Float64 = np.empty(BLOCK)
        for index in self._layout.indices(*purposes):
            dtype = self._layout.specs[index].dtype
            y, base = self._layout.array(values, index).reshape(-1), self.base(index, c_i)
            for start in range(0, len(y), BLOCK):
                block = slice(start, start + BLOCK)
                move = buffer[: len(y[block])]
                difference(y[block], to_float64(base[block], dtype), dtype, move)
                yield index, block, move

    @QUIETLY
    def norms(self, values: Flat, c_i: Flat | None) -> Mapping[Purpose, float]:
        """How far an update moves x, the buffers and c_i."""
        squares: dict[Purpose, float] = defaultdict(float)
        for index, _, move in self.blocks(values, c_i, *Purpose):
            squares[self._layout.specs[index].purpose] += square(move)
        return {purpose: math.sqrt(square) for purpose, square in squares.items()}

    @QUIETLY
    def take_variate_back(self, values: Flat, c_i: Flat | None, share: float) -> None:
        """Leaves only a share of the move of an update's variate: c_i+ becomes c_i + share * (c_i+ - c_i)."""
        for index in self._position:
            dtype = self._layout.specs[index].dtype
            new, old = self._layout.array(values, index).reshape(-1), self.variate(index, c_i)
            for start in range(0, len(new), BLOCK):
                block = slice(start, start + BLOCK)
                base = to_float64(old[block], dtype)
                new[block] = from_float64(base + share * (to_float64(new[block], dtype) - base), dtype)


@dataclass(frozen=True)
class Sizes:
    """Squares of norms of a block."""

    apart: list[float]
    """Of each update's move."""
    together: float
    """Of their sum."""


class Scratch:
    """Tables of four rows, one for each thread that folds.

    They are kept from piece to piece: fresh memory would have to be cleared for each.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._free: list[Float64] = []

    @contextmanager
    def table(self, columns: int) -> Iterator[Float64]:
        """One with so many columns, for the block."""
        try:
            whole = self._free.pop()
        except IndexError:
            whole = np.empty((4, self._columns))
        yield whole[:, :columns]
        self._free.append(whole)


def folded(
    dtype: str,
    x: Array,
    updates: list[tuple[Read, float]],
    before: Float64 | None,
    use: Use,
    piece: slice,
    scratch: Scratch,
) -> list[Sizes]:
    """Gives `use` the sum of moves, with their weights, of a piece of a tensor; by blocks, their sizes."""
    apart = []
    # What is ignored is of this thread, and not of whoever asked for it.
    with scratch.table(piece.stop - piece.start) as table, np.errstate(over="ignore", invalid="ignore"):
        base, sums, other, room = table
        write_float64(x[piece], dtype, base)
        if before is not None:
            sums[:] = before[piece]
        is_empty = before is None
        for read, weight in updates:
            # The first move that counts becomes the sum: nothing is there that it would be added to.
            move = sums if is_empty and weight else other
            difference(read(piece, room.view(np.uint8)), base, dtype, move)
            apart.append(_block_squares(move))
            if not weight:  # Times a move beyond all bounds it would be no number.
                continue
            if weight != 1.0:
                move *= weight
            if not is_empty:
                sums += move
            is_empty = False
        if is_empty:
            sums[:] = 0.0
        found = [Sizes([each[k] for each in apart], size) for k, size in enumerate(_block_squares(sums))]
        use(piece, sums, base)
    return found


def _block_squares(move: Float64) -> list[float]:
    """||move||^2 of each block."""
    end = len(move) // BLOCK * BLOCK
    rows = move[:end].reshape(-1, BLOCK // ROW, ROW)
    found: list[float] = np.einsum("bij,bij->bj", rows, rows).sum(axis=1).tolist()
    return [*found, square(move[end:])] if end < len(move) else found


def difference(y: Array, base: Float64, dtype: str, out: Float64) -> None:
    """y - base, of stored elements, in float64."""
    # First to float64 in place, then the difference: numpy is twice as slow if it mixes the two.
    write_float64(y, dtype, out)
    out -= base


def write_float64(values: Array, dtype: str, out: Float64) -> None:
    """Stored elements as float64, into a buffer."""
    np.copyto(out, values if dtype != "bfloat16" else to_float64(values, dtype))


def square(move: Float64) -> float:
    """||move||^2, by additions in one order on one thread: a BLAS has its own on every machine.

    Squares are added up by columns of a table, which do not wait for each other as terms of one sum do.
    """
    end = len(move) // ROW * ROW
    rows, rest = move[:end].reshape(-1, ROW), move[end:]
    return float(np.einsum("ij,ij->j", rows, rows).sum() + np.einsum("i,i->", rest, rest))
