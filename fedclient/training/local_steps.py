"""The local steps of one round on all parameters of a model at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from common.server_step.rules import Rules
from fedclient.training.pvr import direction, momentum_step, step


class LocalSteps:
    """Moves parameters in place, against their gradients and what an algorithm adds to them.

    The parameters stand in three runs: S_svr, other names with a correction, and the rest. So each run is one
    call of a `torch._foreach` operation, and the one with momentum leaves S_svr alone.
    """

    def __init__(
        self,
        rules: Rules,
        parameters: Mapping[str, Tensor],
        x: Mapping[str, Tensor],
        correction: Mapping[str, Tensor],
        svr: Collection[str],
    ) -> None:
        """`correction` may have names outside of `svr` (FedDyn); those get momentum, where there is any."""
        names = sorted(parameters, key=lambda n: (n not in svr, n not in correction))
        self._num_svr = sum(n in svr for n in names)
        self._num_corrected = sum(n in correction for n in names)
        self._trained = [parameters[n] for n in names]
        self._y = [p.data for p in self._trained]
        self._x = [x[n] for n in names]
        self._terms = [correction[n] for n in names[: self._num_corrected]]
        self._velocity = [torch.zeros_like(p) for p in self._y[self._num_svr :]] if rules.momentum else []
        self.momentum = dict(zip(names[self._num_svr :], self._velocity, strict=False))
        """By name; empty where there is none."""
        self._rules = rules

    def take(self, loss: Tensor) -> None:
        """One step against the gradient of a loss."""
        rules, y, svr = self._rules, self._y, self._num_svr
        g = torch.autograd.grad(loss, self._trained, allow_unused=True, materialize_grads=True)
        towards = self._direction(g)
        if rules.momentum:
            step(y[:svr], towards[:svr], rules.eta_l)
            momentum_step(y[svr:], towards[svr:], self._velocity, rules.eta_l, rules.momentum)
        else:
            step(y, towards, rules.eta_l)

    def _direction(self, g: tuple[Tensor, ...]) -> list[Tensor]:
        k, y, x, weight = self._num_corrected, self._y, self._x, self._rules.prox_weight
        corrected = direction(g[:k], self._terms, y[:k], x[:k], weight)
        return [*corrected, *direction(g[k:], [], y[k:], x[k:], weight)]
