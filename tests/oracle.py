"""The paper's Algorithm I in plain float64 loops, written apart from the code under test."""

from __future__ import annotations

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
) -> tuple[Params, Params]:
    """x and c after full-batch training on all shards."""
    model = build()
    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    c = {name: torch.zeros_like(x[name]) for name in svr}
    c_is = [{name: torch.zeros_like(x[name]) for name in svr} for _ in shards]
    w = torch.tensor(weights if weights is not None else [1.0] * len(shards), dtype=torch.float64)
    w = w / w.sum()
    for _ in range(rounds):
        ys = []
        for i, (images, labels) in enumerate(shards):
            y = {name: value.clone() for name, value in x.items()}
            for _ in range(local_steps):
                leaves = {name: value.clone().requires_grad_() for name, value in y.items()}
                scores = torch.func.functional_call(model, leaves, (images,))
                log_p = scores - scores.logsumexp(1, keepdim=True)
                loss = -log_p[torch.arange(len(labels)), labels].mean()
                loss.backward()
                for name, leaf in leaves.items():
                    g = leaf.grad
                    assert g is not None
                    if name in c:
                        g = g - c_is[i][name] + c[name]
                    y[name] = y[name] - eta_l * g
            c_is[i] = {
                name: c_is[i][name] - c[name] + (x[name] - y[name]) / (local_steps * eta_l) for name in svr
            }
            ys.append(y)
        x = {
            name: value + eta_g * sum(w[i] * (y[name] - value) for i, y in enumerate(ys))
            for name, value in x.items()
        }
        c = {name: torch.stack([c_i[name] for c_i in c_is]).mean(0) for name in svr}
    return x, c
