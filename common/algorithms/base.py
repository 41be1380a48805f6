"""What an algorithm decides. Everything else, on both sides of the wire, is the same for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.tensors.layout import Layout, Purpose, TensorSpec


class Algorithm:
    """Local steps y <- y - eta_l * (g + correction + prox_weight * (y - x)), a variate, a server step.

    This class is FedAvg: no correction, no pull, x becomes the mean of the y_i. An algorithm overrides what
    it does otherwise. The mathematics is written with operators alone, one tensor at a time, so that the same
    line serves torch on the client and numpy on the server.
    """

    prox_setting: str | None = None
    """Name of the setting that weighs y - x in the local gradient."""
    prox_default: float = 0.0
    """Its value where none is given."""
    takes_patterns = False
    """Whether the user may choose S_svr; otherwise it follows from the algorithm alone."""
    reduces_variance = False
    """Whether there is a control variate at all."""
    keeps_h = False
    """Whether the server has a state h of the size of x."""

    def svr(self, parameters: Sequence[str], classifier: Sequence[str]) -> Sequence[str]:
        """S_svr: the names whose control variate goes over the wire, c down and c_i up."""
        return ()

    def variates(self, layout: Layout) -> Layout:
        """The tensors of the variate that each client keeps; by default those of S_svr."""
        return variates_for(layout, Purpose.CONTROL)

    def correction(self, variate: Any, c: Any) -> Any:
        """What every local step of a round adds to the gradient."""
        return c - variate

    def next_variate(self, variate: Any, c: Any, x: Any, y: Any, step_sum: float, prox_weight: float) -> Any:
        """The client's variate after a round whose step sizes add up to `step_sum`.

        On S_svr, with neither momentum nor weight decay, this is the mean raw gradient of the round.
        """
        return variate - c + (x - y) / step_sum

    def c_from_move(self, x_before: Any, x: Any, step_sum: float) -> Any:
        """c after a round in which all N clients took steps of the same sum, from the move of x alone.

        With x the plain mean of the y_i, this is the mean of the next c_i.
        """
        return (x_before - x) / step_sum

    def weight(self, client_weight: float, step_sum: float) -> float:
        """What an update counts in the mean of the y_i; `client_weight` is what its client counts in c.

        An algorithm may weigh updates by their steps, as FedNova does. c is the mean over all clients, those
        who sit a round out included, so what a client counts there is the same in every round.
        """
        return client_weight

    def next_h(self, h: Any, mean_move: Any, prox_weight: float) -> Any:
        """The server's state after a round; `mean_move` is 1/N times the sum of y_i - x over the answers."""
        return h

    def shift(self, h: Any, prox_weight: float) -> Any:
        """What the server adds to x in addition to eta_g times the mean move."""
        return 0.0


def variates_for(layout: Layout, purpose: Purpose) -> Layout:
    """A variate for every tensor of this purpose."""
    specs = (layout.specs[k] for k in layout.indices(purpose))
    return Layout(TensorSpec(s.name, s.dtype, s.shape, Purpose.CLIENT_CONTROL) for s in specs)
