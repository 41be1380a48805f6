"""How far the steps of a round lead away from x, and how much gradients differ from step to step.

It looks on and changes nothing: no example is drawn for it, and no random number. A round that another
process has begun is measured from where this one goes on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from common.metrics.drift import ClientDrift

Tensors = Sequence[Tensor]


class DriftMeter:
    """Sums up squares over the steps of a round, on the device, by whether a parameter is in S_svr."""

    def __init__(self, names: Sequence[str], y: Tensors, x: Tensors, svr: Collection[str]) -> None:
        """All in one order; personal parameters, which are not in x, are their own x and have no name."""
        self._y, self._x = y, x
        self._places = {
            True: [k for k, name in enumerate(names) if name in svr],
            False: [k for k, name in enumerate(names) if name and name not in svr],
        }
        self._drift = {reduced: _nothing(y) for reduced in self._places}
        self._noise = {reduced: _nothing(y) for reduced in self._places}
        self._before: list[Tensor] | None = None
        self._steps = 0

    @torch.no_grad()
    def step(self, g: Tensors) -> None:
        """A step was made; `g` is the raw gradient that it began with."""
        self._steps += 1
        now = [each.detach() for each in g]
        for reduced, places in self._places.items():
            self._drift[reduced] += _distance(places, self._y, self._x)
            if self._before is not None:
                self._noise[reduced] += _distance(places, now, self._before) / 2
        self._before = now

    def measured(self) -> ClientDrift | None:
        """Of all steps; None if there was none, or numbers have left all bounds."""
        if not self._steps:
            return None
        drift = {reduced: total.item() / self._steps for reduced, total in self._drift.items()}
        pairs = self._steps - 1
        noise = {reduced: total.item() / pairs if pairs else None for reduced, total in self._noise.items()}
        if not all(math.isfinite(value or 0.0) for value in (*drift.values(), *noise.values())):
            return None
        return ClientDrift(
            drift_svr=drift[True], drift_sgd=drift[False], noise_svr=noise[True], noise_sgd=noise[False]
        )


def _nothing(like: Tensors) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=like[0].device if like else None)


def _distance(places: Sequence[int], one: Tensors, other: Tensors) -> Tensor:
    """||one - other||^2 on some places."""
    if not places:
        return torch.zeros((), dtype=torch.float64)
    apart = torch._foreach_sub([one[k] for k in places], [other[k] for k in places])
    return torch.stack(torch._foreach_norm(apart)).double().square().sum()
