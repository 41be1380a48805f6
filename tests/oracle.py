"""The paper's Algorithm I in plain float64 loops, written apart from the code under test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]


def train(
    build: Callable[[], nn.Module],
    shards: Sequence[tuple[Tensor, Tensor]],
    svr: Sequence[str],
    *,
    rounds: int,
    local_steps: int,
    eta_l: float,
    eta_g: float,
    weights: Sequence[float] | None = None,
    mu: float = 0.0,
    feddyn_alpha: float = 0.0,
    personal: Sequence[str] = (),
    frozen: Sequence[str] = (),
    kept: list[Params] | None = None,
    momentum: float = 0.0,
    heavy: Sequence[str] = (),
    weight_decay: float = 0.0,
    decayed: Sequence[str] = (),
    clip_norm: float = math.inf,
    clipped: Sequence[str] = (),
    warm: bool = False,
) -> tuple[Params, Params]:
    """x and c after full-batch training on all shards; `kept` gets what is personal, by client.

    x has frozen tensors too, and personal ones as they were at first. `heavy`, `decayed` and `clipped` are
    the names with momentum, weight decay and clipping; with `warm` c_i starts as client i's gradient at x.
    """

    def gradient(y: Params, images: Tensor, labels: Tensor) -> Params:
        leaves = {name: value.clone().requires_grad_() for name, value in y.items()}
        scores = torch.func.functional_call(model, leaves, (images,))
        log_p = scores - scores.logsumexp(1, keepdim=True)
        (-log_p[torch.arange(len(labels)), labels].mean()).backward()
        g = {name: leaf.grad.clone() for name, leaf in leaves.items() if leaf.grad is not None}
        norm = math.sqrt(sum(float(g[name].square().sum()) for name in clipped))
        for name in clipped:
            g[name] *= min(1.0, clip_norm / (norm + 1e-6))
        for name in decayed:
            g[name] += weight_decay * y[name]
        return g

    model = build()
    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    c = {name: torch.zeros_like(x[name]) for name in svr}
    c_is = [{name: torch.zeros_like(x[name]) for name in svr} for _ in shards]
    l_is = [{name: torch.zeros_like(value) for name, value in x.items()} for _ in shards]
    h = {name: torch.zeros_like(value) for name, value in x.items()}
    w = torch.tensor(weights if weights is not None else [1.0] * len(shards), dtype=torch.float64)
    w = w / w.sum()
    p_is = [{name: x[name].clone() for name in personal} for _ in shards]
    # A direction of step k is in y as often as steps follow, each time with less: m^0 + m^1 + ...
    sizes = [sum(momentum**j for j in range(local_steps - k)) for k in range(local_steps)]
    moved = {name: eta_l * (sum(sizes) if name in heavy else local_steps) for name in x}
    if warm:
        c_is = [{name: gradient(x, *shard)[name] for name in svr} for shard in shards]
        c = {name: torch.stack([w[i] * c_i[name] for i, c_i in enumerate(c_is)]).sum(0) for name in svr}
    for _ in range(rounds):
        ys = []
        for i, (images, labels) in enumerate(shards):
            y = {name: value.clone() for name, value in (x | p_is[i]).items()}
            velocity = {name: torch.zeros_like(x[name]) for name in heavy}
            for _ in range(local_steps):
                for name, g in gradient(y, images, labels).items():
                    if name in frozen:
                        continue
                    if name in c:
                        g = g - c_is[i][name] + c[name]
                    if name not in personal:
                        g = g + mu * (y[name] - x[name])
                        if feddyn_alpha:
                            g = g - l_is[i][name] + feddyn_alpha * (y[name] - x[name])
                    if name in heavy:
                        g = velocity[name] = momentum * velocity[name] + g
                    y[name] = y[name] - eta_l * g
            c_is[i] = {name: c_is[i][name] - c[name] + (x[name] - y[name]) / moved[name] for name in svr}
            p_is[i] = {name: y.pop(name) for name in personal}
            y |= {name: x[name] for name in personal}
            l_is[i] = {name: l_is[i][name] - feddyn_alpha * (y[name] - x[name]) for name in x}
            ys.append(y)
        h = {name: h[name] - feddyn_alpha * sum(y[name] - x[name] for y in ys) / len(ys) for name in x}
        x = {
            name: value + eta_g * sum(w[i] * (y[name] - value) for i, y in enumerate(ys))
            for name, value in x.items()
        }
        if feddyn_alpha:
            x = {name: value - h[name] / feddyn_alpha for name, value in x.items()}
        c = {name: torch.stack([w[i] * c_i[name] for i, c_i in enumerate(c_is)]).sum(0) for name in svr}
    if kept is not None:
        kept += p_is
    return x, c
