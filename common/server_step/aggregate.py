"""The server's step, on flat buffers: x and c of the next round from the updates of this one.

    x <- x + eta_g * sum_i w_i (y_i - x) / sum_i w_i        appendix form of the paper's server update
    c <- c + (1/N) * sum_i (c_i+ - c_i)                     over the clients that answered; N counts all
    clients

Buffers such as BatchNorm statistics follow the first rule with eta_g = 1: they are averaged, never
accelerated. Sums are float64 and are added up in the order of `add`; called in the order of client indices
the result does not depend on who answered first.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from common.algorithms.base import Algorithm
from common.tensors.layout import BLOCK, Array, Flat, Float64, Layout, Purpose, from_float64, to_float64

_QUIETLY = np.errstate(over="ignore", invalid="ignore")
"""A client may send numbers whose squares or sums are too large; whoever closes the round looks for those."""


class ServerState:
    """h: what some algorithms keep at the server between rounds, in float64."""

    def __init__(self, layout: Layout, algorithm: Algorithm, prox_weight: float) -> None:
        self._algorithm = algorithm
        self._prox_weight = prox_weight
        self.h = {k: np.zeros(layout.specs[k].num_elements) for k in layout.indices(Purpose.MODEL)}

    def move(self, index: int, block: slice, mean_move: Float64) -> Float64:
        """Updates a block of h and returns what it adds to x."""
        self.h[index][block] = self._algorithm.next_h(self.h[index][block], mean_move, self._prox_weight)
        shift: Float64 = self._algorithm.shift(self.h[index][block], self._prox_weight)
        return shift


class Aggregate:
    """Running sums over the updates of one round. Their memory does not depend on the number of clients."""

    def __init__(self, layout: Layout, seen: Flat) -> None:
        """`seen` is what clients saw of the round: x, buffers and c, laid out as every update is."""
        self._layout = layout
        self._seen = seen
        self._sums: list[Float64] = [np.zeros(spec.num_elements) for spec in layout.specs]
        self._squares = np.zeros(len(layout.specs))
        self._total_weight = 0.0
        self._variates = Layout(layout.specs[k] for k in layout.indices(Purpose.CONTROL))
        self._position = {at: to for to, at in enumerate(layout.indices(Purpose.CONTROL))}
        self.updates = 0

    @_QUIETLY
    def add(self, up: Flat, c_i: Flat | None, weight: float) -> None:
        """Takes in one update; `c_i` is the client's variate before this round (None: zero)."""
        for index, spec in enumerate(self._layout.specs):
            factor = 1.0 if spec.purpose is Purpose.CONTROL else weight
            base = self._base(index, c_i)
            y = self._layout.array(up, index).reshape(-1)
            self._add_tensor(index, y, base.reshape(-1), spec.dtype, factor)
        self._total_weight += weight
        self.updates += 1

    def _base(self, index: int, c_i: Flat | None) -> Array:
        """What a tensor of an update is compared with: x, or the client's variate before."""
        seen = self._layout.array(self._seen, index)
        if self._layout.specs[index].purpose is not Purpose.CONTROL:
            return seen
        return np.zeros_like(seen) if c_i is None else self._variates.array(c_i, self._position[index])

    def _moves(self, index: int) -> Float64:
        """The sum of all updates' moves."""
        return self._sums[index]

    def _add_tensor(self, index: int, y: Array, base: Array, dtype: str, factor: float) -> None:
        total = self._sums[index]
        for start in range(0, len(total), BLOCK):
            block = slice(start, start + BLOCK)
            delta = to_float64(y[block], dtype)
            delta -= to_float64(base[block], dtype)
            if factor != 1.0:
                delta *= factor
            total[block] += delta
            self._squares[index] += float(delta @ delta)

    @_QUIETLY
    def result(self, flat: Flat, eta_g: float, num_clients: int, server: ServerState | None = None) -> Flat:
        """The next x, buffers and c from those of this round, `flat`.

        That is what clients saw, unless it was coded with a loss. Moves the server's own state on, for an
        algorithm that has one.
        """
        if not self.updates:
            raise ValueError("no update to aggregate")
        rate = {
            Purpose.MODEL: eta_g / self._total_weight,
            Purpose.BUFFER: 1.0 / self._total_weight,
            Purpose.CONTROL: 1.0 / num_clients,
        }
        out = self._layout.allocate()
        for index, spec in enumerate(self._layout.specs):
            old = self._layout.array(flat, index).reshape(-1)
            new = self._layout.array(out, index).reshape(-1)
            moves = self._moves(index)
            for start in range(0, len(old), BLOCK):
                block = slice(start, start + BLOCK)
                value = to_float64(old[block], spec.dtype) + moves[block] * rate[spec.purpose]
                if server is not None and spec.purpose is Purpose.MODEL:
                    value += server.move(index, block, moves[block] / num_clients)
                new[block] = from_float64(value, spec.dtype)
        return out

    @_QUIETLY
    def norms(self) -> dict[Purpose, float]:
        """Norm of all moves together, by what moved; of a single update, its own."""
        squares: dict[Purpose, float] = defaultdict(float)
        for spec, square in zip(self._layout.specs, self._squares, strict=True):
            squares[spec.purpose] += float(square)
        return {purpose: math.sqrt(square) for purpose, square in squares.items()}

    def drift_diversity(self, *, by_layer: bool = False) -> dict[str, float]:
        """xi = sum ||m_i||^2 / ||sum m_i||^2 with m_i = y_i - x (paper, eq. 2), per parameter tensor or per
        layer.

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
