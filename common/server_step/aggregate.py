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
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from common.server_step.moves import QUIETLY, Moves
from common.server_step.robust import Center
from common.server_step.rules import Rules
from common.tensors.layout import BLOCK, Flat, Float64, Layout, Purpose, from_float64, to_float64

ServerState = Mapping[int, Float64]
"""h, what some algorithms keep at the server between rounds: by the index of a parameter; else empty."""

STACK_ELEMENTS = 1 << 22
"""Numbers of all clients that are put side by side at a time, whatever the number of clients."""


class Aggregate:
    """Running sums over the updates of one round. Their memory does not depend on the number of clients."""

    def __init__(self, layout: Layout, broadcast: Flat) -> None:
        """`broadcast` is what clients saw of the round: x, buffers and c, laid out as every update is."""
        self._layout = layout
        self._moves = Moves(layout, broadcast)
        self._sums: list[Float64] = [np.zeros(spec.num_elements) for spec in layout.specs]
        self._squares = np.zeros(len(layout.specs))
        self._total_weight = 0.0

    @QUIETLY
    def add(
        self, values: Flat, c_i: Flat | None, weight: float, client_weight: float
    ) -> Mapping[Purpose, float]:
        """Takes in one update. `c_i` is the client's variate before this round (None: zero).

        `weight` is what y_i counts, `client_weight` what the client counts in c. Returns how far the update
        moves x, the buffers and c_i.
        """
        squares: dict[Purpose, float] = defaultdict(float)
        for index, block, move in self._moves.blocks(values, c_i):
            purpose = self._layout.specs[index].purpose
            factor = client_weight if purpose is Purpose.CONTROL else weight
            square = float(move @ move)
            squares[purpose] += square
            if factor:  # No weight times a move beyond all bounds would be no number.
                self._squares[index] += square * factor**2
                self._sums[index][block] += move if factor == 1.0 else move * factor
        self._total_weight += weight
        return {purpose: math.sqrt(square) for purpose, square in squares.items()}

    def _sum(self, index: int) -> Float64:
        """The sum of all updates' moves of a tensor, with their weights."""
        return self._sums[index]

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
        out, next_h = self._layout.allocate(), {index: np.empty_like(old) for index, old in h.items()}
        for index, spec in enumerate(self._layout.specs):
            old = self._layout.array(flat, index).reshape(-1)
            new = self._layout.array(out, index).reshape(-1)
            if spec.purpose is Purpose.CONTROL:
                center = self._center_of_variates(index, absent)
                if center is not None:
                    new[:] = from_float64(center, spec.dtype)
                    continue
            moves = self._sum(index)
            for start in range(0, len(old), BLOCK):
                block = slice(start, start + BLOCK)
                value = to_float64(old[block], spec.dtype) + moves[block] * rate[spec.purpose]
                if index in h:
                    mean_move = moves[block] / rules.total_weight
                    next_h[index][block] = rules.method.next_h(h[index][block], mean_move, rules.prox_weight)
                    value += rules.method.shift(next_h[index][block], rules.prox_weight)
                new[block] = from_float64(value, spec.dtype)
        return out, next_h

    def drift_diversity(self, *, by_layer: bool = False) -> dict[str, float]:
        """xi = sum ||m_i||^2 / ||sum m_i||^2, m_i = y_i - x (paper, eq. 2), per parameter or per layer.

        1/N where all clients moved alike, large where they moved apart. With weights by examples, m_i counts
        with its weight. What did not move, or beyond all bounds, has no entry.
        """
        apart: dict[str, float] = defaultdict(float)
        together: dict[str, float] = defaultdict(float)
        for index in self._layout.indices(Purpose.MODEL):
            name = self._layout.specs[index].name
            key = name.rpartition(".")[0] if by_layer else name
            apart[key] += self._squares[index]
            together[key] += float(self._sums[index] @ self._sums[index])
        found = {key: float(apart[key] / together[key]) for key in apart if together[key] > 0}
        return {key: xi for key, xi in found.items() if math.isfinite(xi)}


class RobustAggregate(Aggregate):
    """Keeps hold of the updates, which should lie in mapped files, until all are there."""

    def __init__(self, layout: Layout, broadcast: Flat, center: Center) -> None:
        super().__init__(layout, broadcast)
        self._center = center
        self._held: list[tuple[Flat, Flat | None]] = []
        """Updates that count."""
        self._variates: list[Flat] = []
        """c_i+ of all, also of those whose y_i does not count."""

    def add(
        self, values: Flat, c_i: Flat | None, weight: float, client_weight: float
    ) -> Mapping[Purpose, float]:
        """Takes in one update. A center has no weights, but what weighs nothing is not in it."""
        self._variates.append(values)
        if weight:
            self._held.append((values, c_i))
        return super().add(values, c_i, 1.0 if weight else 0.0, client_weight)

    def _sum(self, index: int) -> Float64:
        """As many times the center as there are updates: what a sum is to the mean."""
        dtype = self._layout.specs[index].dtype
        pairs = [
            (self._layout.array(values, index).reshape(-1), self._moves.base(index, c_i))
            for values, c_i in self._held
        ]

        def moves(block: slice) -> list[Float64]:
            return [to_float64(y[block], dtype) - to_float64(base[block], dtype) for y, base in pairs]

        return self._centered(index, moves, len(pairs)) * len(pairs)

    def _center_of_variates(self, index: int, absent: Sequence[Flat | None]) -> Float64:
        """Of the c_i of all clients, those that are absent included."""
        dtype = self._layout.specs[index].dtype
        new = [self._layout.array(values, index).reshape(-1) for values in self._variates]
        old = [self._moves.variate(index, c_i) for c_i in absent]
        everybody = [*new, *old]

        def variates(block: slice) -> list[Float64]:
            return [to_float64(c_i[block], dtype) for c_i in everybody]

        return self._centered(index, variates, len(everybody))

    def _centered(self, index: int, stack: Callable[[slice], list[Float64]], height: int) -> Float64:
        """The center of a tensor of all clients, of which `stack` gives a piece."""
        center = np.empty(self._layout.specs[index].num_elements)
        width = max(1, STACK_ELEMENTS // height)
        for start in range(0, len(center), width):
            block = slice(start, start + width)
            center[block] = self._center(np.stack(stack(block)))
        return center


def first_state(rules: Rules, layout: Layout) -> ServerState:
    """h before the first round: zero, for an algorithm that keeps one."""
    if not rules.method.keeps_h:
        return {}
    return {k: np.zeros(layout.specs[k].num_elements) for k in layout.indices(Purpose.MODEL)}
