"""The center of the numbers of all clients in the place of their mean. Pure, on flat buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from common.server_step.aggregate import Aggregate, Allocate
from common.server_step.robust import Center
from common.tensors.layout import Flat, Float64, Layout, Purpose, to_float64

STACK_ELEMENTS = 1 << 22
"""Numbers of all clients that are put side by side at a time, whatever the number of clients."""


class RobustAggregate(Aggregate):
    """Keeps hold of the updates, which should lie in mapped files, until all are there."""

    def __init__(self, layout: Layout, broadcast: Flat, center: Center, allocate: Allocate) -> None:
        super().__init__(layout, broadcast, allocate)
        self._center = center
        self._held: list[tuple[Flat, Flat | None]] = []
        """Updates that count."""
        self._variates: list[Flat] = []
        """c_i+ of all, also of those whose y_i does not count."""
        self._norms: list[Mapping[Purpose, float]] = []

    def add(self, values: Flat, c_i: Flat | None, weight: float, client_weight: float) -> None:
        """Takes in one update. A center has no weights, but what weighs nothing is not in it."""
        self._variates.append(values)
        self._norms.append(self._moves.norms(values, c_i))
        if weight:
            self._held.append((values, c_i))
        super().add(values, c_i, 1.0 if weight else 0.0, client_weight)

    def norms(self) -> list[Mapping[Purpose, float]]:
        """Known before the result, which takes a while."""
        return self._norms

    def _center_of(self, index: int) -> Float64:
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
