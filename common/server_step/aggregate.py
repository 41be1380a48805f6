"""Sums over the updates of a round, and the next x and c from them. Pure, on flat buffers.

    x <- x + eta_g * sum_{i in S} w_i (y_i - x) / sum_{i in S} w_i      (appendix form of the paper's step)
    c <- c + sum_{i in S} p_i (c_i+ - c_i)

S are the clients whose updates count. With weights by examples w_i = n_i and p_i = n_i / (n_1 + ... + n_N),
else w_i = 1 and p_i = 1/N: c stays the mean of the c_i of all N clients, with the weights that their y_i have
in the mean. Were x weighted and c not, x would come to rest at the weighted optimum outside S_svr and at the
unweighted one on it. Buffers such as BatchNorm statistics follow the first rule with eta_g = 1: they are
averaged, never accelerated. Sums are float64 and are added up in the order of `add`; called in the order of
client indices the result does not depend on who answered first. A robust center takes the place of the mean
over the moves of x and, for c, over the c_i of all N clients themselves: c is their center then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from common.processes import cores
from common.server_step.moves import (
    BLOCK,
    QUIETLY,
    Moves,
    Scratch,
    Sizes,
    Use,
    folded,
    square,
    write_float64,
)
from common.server_step.rules import Rules
from common.tensors.layout import Array, Flat, Float64, Layout, Purpose, from_float64
from common.tensors.mapped_files import Stored

Allocate = Callable[[Layout], Flat]
"""Gives memory for the next x, buffers and c."""
Waiting = tuple[Flat, float, dict[Purpose, float]]
"""An update, its weight and the squares of its norms."""
_Task = tuple[int, Callable[[], list[Sizes]]]
"""The index of a tensor, and what folds a piece of it."""
ServerState = Mapping[int, Float64]
"""h, what some algorithms keep at the server between rounds: by the index of a parameter; else empty."""

PIECE = 8 * BLOCK
"""Numbers that are folded in one go. Fewer are slower, though they would stay in a core's cache: threads wait
for the interpreter between two calls. Of updates in files each thread has one piece in memory."""
WORTH_SPREADING = 1 << 20
"""Numbers, of all updates together, for which other threads are woken."""
TOGETHER = 64
"""Updates that are folded in one pass. Until there are more, no sum of the model's size is in memory."""


class Aggregate:
    """Sums over the updates of one round. Their memory does not depend on the number of clients.

    Updates should lie in mapped files. They are folded when the round closes, all of them in each block of
    numbers before the next, so that x is read and the next one written once, and sums stay in the cache.
    """

    def __init__(self, layout: Layout, broadcast: Flat, allocate: Allocate = Layout.allocate) -> None:
        """`broadcast` is what clients saw of the round: x, buffers and c, laid out as every update is."""
        self._layout = layout
        self._allocate = allocate
        self._moves = Moves(layout, broadcast)
        self._waiting: list[Waiting] = []
        """Updates that are not in the sums yet, with their weights and the squares of their norms."""
        self._squares: list[dict[Purpose, float]] = []
        """Of the norms of all updates."""
        self._sums: dict[int, Float64] = {
            k: np.zeros(layout.specs[k].num_elements) for k in layout.indices(Purpose.CONTROL)
        }
        """By tensor: of the variates, which are small, and of the others once there are many updates."""
        self._apart: dict[int, float] = defaultdict(float)
        """By parameter, the sum of ||m_i||^2; and below ||sum m_i||^2, once the round has a result."""
        self._together: dict[int, float] = defaultdict(float)
        self._total_weight = 0.0

    @QUIETLY
    def add(self, values: Flat, c_i: Flat | None, weight: float, client_weight: float) -> None:
        """Takes in one update. `c_i` is the client's variate before this round (None: zero).

        `weight` is what y_i counts, `client_weight` what the client counts in c.
        """
        squares = {spec.purpose: 0.0 for spec in self._layout.specs}
        for index, block, move in self._moves.blocks(values, c_i, Purpose.CONTROL):
            squares[Purpose.CONTROL] += square(move)
            if client_weight:  # No weight times a move beyond all bounds would be no number.
                self._sums[index][block] += move if client_weight == 1.0 else move * client_weight
        self._squares.append(squares)
        self._waiting.append((values, weight, squares))
        self._total_weight += weight
        if len(self._waiting) == TOGETHER:
            self._fold_waiting()

    def _fold_waiting(self) -> None:
        """Makes room for further updates."""
        kept = self._layout.indices(Purpose.MODEL, Purpose.BUFFER)
        for index in kept:
            self._sums.setdefault(index, np.zeros(self._layout.specs[index].num_elements))
        self._fold((index, _kept_in(self._sums[index])) for index in kept)
        self._waiting.clear()

    def _fold(self, uses: Iterable[tuple[int, Use]]) -> None:
        """Gives each `use` the sum of all updates' moves of its tensor, with their weights, by pieces."""
        num_elements = sum(spec.num_elements for spec in self._layout.specs)
        spreads = cores.num_threads() > 1 and num_elements * len(self._waiting) >= WORTH_SPREADING
        with ExitStack() as opened:
            stored = [opened.enter_context(Stored(y)) for y, _, _ in self._waiting]
            tasks = self._tasks(uses, stored)
            for index, found in cores.spread(_done, tasks) if spreads else map(_done, tasks):
                waiting, purpose = self._waiting_for(index), self._layout.specs[index].purpose
                for sizes in found:
                    self._together[index] += sizes.together
                    for (_, weight, squares), size in zip(waiting, sizes.apart, strict=True):
                        squares[purpose] += size
                        if weight:
                            self._apart[index] += size * weight**2

    def _tasks(self, uses: Iterable[tuple[int, Use]], stored: Sequence[Stored]) -> Iterator[_Task]:
        """The pieces of all tensors; `stored` are the updates that wait."""
        scratch = Scratch(min(PIECE, max((spec.num_elements for spec in self._layout.specs), default=0)))
        for index, use in uses:
            x, dtype = self._moves.base(index, None), self._layout.specs[index].dtype
            before = self._sums.get(index)
            updates = [
                (stored[k].reading(self._layout, index), weight)
                for k, (_, weight, _) in enumerate(self._waiting_for(index))
            ]
            self._together[index] = 0.0
            for start in range(0, len(x), PIECE):
                piece = slice(start, min(start + PIECE, len(x)))
                yield index, partial(folded, dtype, x, updates, before, use, piece, scratch)

    def _waiting_for(self, index: int) -> list[Waiting]:
        """Updates whose moves of a tensor are not in its sum yet."""
        return self._waiting if self._layout.specs[index].purpose is not Purpose.CONTROL else []

    def _center_of(self, index: int) -> Float64 | None:
        """What takes the place of a tensor's sum of moves; None where nothing does."""
        return None

    def _center_of_variates(self, index: int, absent: Sequence[Flat | None]) -> Float64 | None:
        """What a tensor of c becomes where it does not follow from the sum of moves; None where it does."""
        return None

    @QUIETLY
    def result(
        self, flat: Flat, rules: Rules, h: ServerState, absent: Sequence[Flat | None] = ()
    ) -> tuple[Flat, ServerState]:
        """The next x, buffers and c from those of this round, `flat`, and the next h.

        `flat` is what clients saw, unless that was coded with a loss. `absent` are the variates of the
        clients without an update in this round (None: zero), for a center that needs them.
        """
        if not self._total_weight:
            raise ValueError("no update to aggregate")
        rate = {
            Purpose.MODEL: rules.eta_g / self._total_weight,
            Purpose.BUFFER: 1.0 / self._total_weight,
            Purpose.CONTROL: 1.0 / rules.total_weight,
        }
        out, next_h = self._allocate(self._layout), {index: np.empty_like(old) for index, old in h.items()}

        def uses() -> Iterator[tuple[int, Use]]:
            for index, spec in enumerate(self._layout.specs):
                old = self._layout.array(flat, index).reshape(-1)
                new = self._layout.array(out, index).reshape(-1)
                if spec.purpose is Purpose.CONTROL:
                    variates = self._center_of_variates(index, absent)
                    if variates is not None:
                        new[:] = from_float64(variates, spec.dtype)
                        continue
                yield index, self._next(index, old, new, rate[spec.purpose], rules, h, next_h)

        self._fold(uses())
        return out, next_h

    def _next(
        self,
        index: int,
        old: Array,
        new: Array,
        rate: float,
        rules: Rules,
        h: ServerState,
        next_h: ServerState,
    ) -> Use:
        """Writes the next values of a tensor, and of its h, from the sums of moves."""
        dtype, center, method = self._layout.specs[index].dtype, self._center_of(index), rules.method

        def write(piece: slice, moves: Float64, value: Float64) -> None:
            if center is not None:
                moves = center[piece]
            if index in h:
                mean_move = moves / rules.total_weight
                next_h[index][piece] = method.next_h(h[index][piece], mean_move, rules.prox_weight)
            write_float64(old[piece], dtype, value)
            moves *= rate  # Nobody needs them any more.
            value += moves
            if index in h:
                value += method.shift(next_h[index][piece], rules.prox_weight)
            new[piece] = value if dtype == "float32" else from_float64(value, dtype)

        return write

    def norms(self) -> list[Mapping[Purpose, float]]:
        """How far each update moves x, the buffers and c_i, in the order of `add`; known with the result."""
        return [{purpose: math.sqrt(size) for purpose, size in each.items()} for each in self._squares]

    def drift_diversity(self, *, by_layer: bool = False) -> dict[str, float]:
        """xi = sum ||m_i||^2 / ||sum m_i||^2, m_i = y_i - x (paper, eq. 2), per parameter or per layer.

        Known once there is a result. 1/N where all clients moved alike, large where they moved apart. With
        weights by examples, m_i counts with its weight. What did not move, or beyond all bounds, has no
        entry.
        """
        apart: dict[str, float] = defaultdict(float)
        together: dict[str, float] = defaultdict(float)
        for index in self._layout.indices(Purpose.MODEL):
            name = self._layout.specs[index].name
            key = name.rpartition(".")[0] if by_layer else name
            apart[key] += self._apart[index]
            together[key] += self._together[index]
        found = {key: float(apart[key] / together[key]) for key in apart if together[key] > 0}
        return {key: xi for key, xi in found.items() if math.isfinite(xi)}


def _kept_in(sums: Float64) -> Use:
    def keep(piece: slice, moves: Float64, _: Float64) -> None:
        sums[piece] = moves

    return keep


def _done(task: _Task) -> tuple[int, list[Sizes]]:
    index, fold = task
    return index, fold()


def first_state(rules: Rules, layout: Layout) -> ServerState:
    """h before the first round: zero, for an algorithm that keeps one."""
    if not rules.method.keeps_h:
        return {}
    return {k: np.zeros(layout.specs[k].num_elements) for k in layout.indices(Purpose.MODEL)}
