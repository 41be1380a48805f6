"""How far the mean gradients of clients in a round lie apart: zeta^2, from what the server has. Pure.

    m_i     c_i+ on S_svr, which is the mean raw gradient of client i in the round; elsewhere what y_i has
            moved by, divided by the sum of the step sizes that moved it
    zeta^2  mean of ||m_i||^2 - ||mean of m_i||^2, over the updates of the round

Nothing more has to be sent for it. The m_i are means along the clients' ways and not gradients at x: they
have the drift of the round in them. All updates count alike, also where they have other weights in x.
"""

from __future__ import annotations

import numpy as np

from common.server_step.moves import QUIETLY
from common.server_step.rules import Rules
from common.server_step.updates import ReadUpdate
from common.tensors.layout import Flat, Float64, Layout, Purpose, to_float64


class Heterogeneity:
    """Sums over the updates of one round: two numbers, and one of the size of the model."""

    def __init__(self, rules: Rules, layout: Layout, broadcast: Flat) -> None:
        """`broadcast` is x, buffers and c as clients saw them."""
        self._rules, self._layout, self._broadcast = rules, layout, broadcast
        control = layout.indices(Purpose.CONTROL)
        reduced = {layout.specs[k].name for k in control}
        others = [k for k in layout.indices(Purpose.MODEL) if layout.specs[k].name not in reduced]
        self._parts = {True: control, False: others}
        self._sums: dict[int, Float64] = {
            k: np.zeros(layout.specs[k].num_elements) for part in self._parts.values() for k in part
        }
        self._squares = dict.fromkeys(self._parts, 0.0)
        self._updates = 0

    @QUIETLY
    def add(self, update: ReadUpdate) -> None:
        """Takes in one update."""
        self._updates += 1
        for reduced, part in self._parts.items():
            for k in part:
                mean = self._gradient(k, update) if not reduced else self._values(k, update.values)
                self._sums[k] += mean
                self._squares[reduced] += float(np.dot(mean, mean))

    def _values(self, k: int, flat: Flat) -> Float64:
        return to_float64(self._layout.array(flat, k).reshape(-1), self._layout.specs[k].dtype)

    def _gradient(self, k: int, update: ReadUpdate) -> Float64:
        """The mean of what moved a parameter outside S_svr."""
        rules, name = self._rules, self._layout.specs[k].name
        step_sum = rules.outside_step_sum(name, update.steps)
        return (self._values(k, self._broadcast) - self._values(k, update.values)) / step_sum

    @QUIETLY
    def zeta(self, *, reduced: bool) -> float | None:
        """zeta^2 on S_svr or on all other parameters; None where there are none, or no finite number."""
        part = self._parts[reduced]
        if not part or not self._updates:
            return None
        together = sum(float(np.dot(self._sums[k], self._sums[k])) for k in part) / self._updates**2
        found = self._squares[reduced] / self._updates - together
        return max(found, 0.0) if np.isfinite(found) else None
