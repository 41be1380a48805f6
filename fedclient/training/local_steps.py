"""The local steps of one round on all parameters of a model at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from common.server_step.rules import Rules
from fedclient.measures.drift import DriftMeter
from fedclient.training.pvr import Tensors, clip, decay, direction, momentum_step, step


class LocalSteps:
    """Moves parameters in place, against their gradients and what an algorithm adds to them.

    Those with a correction stand first, so that each operation of `torch._foreach` is one call on a run of
    them; what is for some parameters only is done on lists of their places.
    """

    def __init__(
        self,
        rules: Rules,
        parameters: Mapping[str, Tensor],
        x: Mapping[str, Tensor],
        correction: Mapping[str, Tensor],
        svr: Collection[str],
    ) -> None:
        """`correction` may have names outside of `svr` (FedDyn)."""
        names = self.names = sorted(parameters, key=lambda n: (n not in svr, n not in correction))
        self._num_corrected = sum(n in correction for n in names)
        self.trained = [parameters[n] for n in names]
        self._y = [p.data for p in self.trained]
        self._x = [x[n] for n in names]
        self._terms = [correction[n] for n in names[: self._num_corrected]]
        moving = rules.with_momentum(names, svr)
        self._heavy = self._places(moving)
        self._light = self._places(set(names) - set(moving))
        self._decayed = self._places(rules.decayed(names, svr))
        self._clipped = self._places(rules.clipped(names, svr))
        self._velocity = [torch.zeros_like(self._y[k]) for k in self._heavy]
        self.momentum = dict(zip((names[k] for k in self._heavy), self._velocity, strict=True))
        """By name; empty where there is none."""
        self._rules = rules
        self.meter: DriftMeter | None = None
        """Looks on, if that is wanted."""

    def measure(self, svr: Collection[str], personal: Collection[str]) -> None:
        """Lets every step be measured, on S_svr and on the other parameters of x."""
        names = ["" if name in personal else name for name in self.names]
        self.meter = DriftMeter(names, self._y, self._x, svr)

    def _places(self, chosen: Collection[str]) -> list[int]:
        return [k for k, name in enumerate(self.names) if name in chosen]

    def take(self, loss: Tensor) -> None:
        """One step against the gradient of a loss."""
        g = self.gradient(loss)
        towards = self._direction(self.regularised(g))
        self._step(towards)
        if self.meter is not None:
            self.meter.step(g)

    def _step(self, towards: list[Tensor]) -> None:
        rules, y = self._rules, self._y
        if not self._heavy:
            step(y, towards, rules.eta_l)
            return
        step(_at(self._light, y), _at(self._light, towards), rules.eta_l)
        heavy, pushed = _at(self._heavy, y), _at(self._heavy, towards)
        momentum_step(heavy, pushed, self._velocity, rules.eta_l, rules.momentum)

    def gradient(self, loss: Tensor) -> Tensors:
        """Of a loss, for the parameters in the order of `names`."""
        return torch.autograd.grad(loss, self.trained, allow_unused=True, materialize_grads=True)

    def regularised(self, g: Tensors) -> Tensors:
        """The gradient before the algorithm adds anything to it: clipped, and with weight decay."""
        if self._clipped:
            norm = self._rules.clip_norm or 0.0
            g = _changed(g, self._clipped, lambda some: clip(some, norm))
        if self._decayed:
            y = _at(self._decayed, self._y)
            g = _changed(g, self._decayed, lambda some: decay(some, y, self._rules.weight_decay))
        return g

    def _direction(self, g: Tensors) -> list[Tensor]:
        k, y, x, weight = self._num_corrected, self._y, self._x, self._rules.prox_weight
        corrected = direction(g[:k], self._terms, y[:k], x[:k], weight)
        return [*corrected, *direction(g[k:], [], y[k:], x[k:], weight)]


def _at(places: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensors[k] for k in places]


def _changed(g: Tensors, places: Sequence[int], change: Callable[[Tensors], Tensors]) -> Tensors:
    """Gradients of which some are changed, all of these at once."""
    new = list(g)
    for k, tensor in zip(places, change(_at(places, g)), strict=True):
        new[k] = tensor
    return new
