"""FedDyn (Acar et al., ICLR 2021): a dynamic regulariser whose linear part l_i each client keeps.

client   g + alpha * (y - x) - l_i in every step, then l_i <- l_i - alpha * (y_i - x)
server   h <- h - alpha * (1/N) * sum_i (y_i - x), then x <- mean(y_i) - h / alpha
"""

from __future__ import annotations

from typing import Any

from common.algorithms.base import Algorithm, variates_for
from common.tensors.layout import Layout, Purpose


class FedDyn(Algorithm):
    """Nothing but the model goes over the wire: l_i stays with the client, h with the server."""

    prox_setting = "feddyn_alpha"
    prox_default = 0.01
    keeps_h = True

    def variates(self, layout: Layout) -> Layout:
        """l_i, for every parameter."""
        return variates_for(layout, Purpose.MODEL)

    def correction(self, variate: Any, c: Any) -> Any:
        """The linear part of the regulariser."""
        return -variate

    def next_variate(self, variate: Any, c: Any, x: Any, y: Any, step_sum: float, prox_weight: float) -> Any:
        """l_i after a round."""
        return variate - prox_weight * (y - x)

    def next_h(self, h: Any, mean_move: Any, prox_weight: float) -> Any:
        """h after a round."""
        return h - prox_weight * mean_move

    def shift(self, h: Any, prox_weight: float) -> Any:
        """What moves x beyond the mean of the client models."""
        return -h / prox_weight
