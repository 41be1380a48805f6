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
    mu: float = 0.0,
    feddyn_alpha: float = 0.0,
    personal: Sequence[str] = (),
    frozen: Sequence[str] = (),
    kept: list[Params] | None = None,
) -> tuple[Params, Params]:
    """x and c after full-batch training on all shards; `kept` gets what is personal, by client.

    x has frozen tensors too, and personal ones as they were at first.
    """
    model = build()
    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    c = {name: torch.zeros_like(x[name]) for name in svr}
    c_is = [{name: torch.zeros_like(x[name]) for name in svr} for _ in shards]
    l_is = [{name: torch.zeros_like(value) for name, value in x.items()} for _ in shards]
    h = {name: torch.zeros_like(value) for name, value in x.items()}
    w = torch.tensor(weights if weights is not None else [1.0] * len(shards), dtype=torch.float64)
    w = w / w.sum()
    p_is = [{name: x[name].clone() for name in personal} for _ in shards]
    for _ in range(rounds):
        ys = []
        for i, (images, labels) in enumerate(shards):
            y = {name: value.clone() for name, value in (x | p_is[i]).items()}
            for _ in range(local_steps):
                leaves = {name: value.clone().requires_grad_() for name, value in y.items()}
                scores = torch.func.functional_call(model, leaves, (images,))
                log_p = scores - scores.logsumexp(1, keepdim=True)
                loss = -log_p[torch.arange(len(labels)), labels].mean()
                loss.backward()
                for name, leaf in leaves.items():
                    g = leaf.grad
                    assert g is not None
                    if name in frozen:
                        continue
                    if name in personal:
                        y[name] = y[name] - eta_l * g
                        continue
                    if name in c:
                        g = g - c_is[i][name] + c[name]
                    g = g + mu * (y[name] - x[name])
                    if feddyn_alpha:
                        g = g - l_is[i][name] + feddyn_alpha * (y[name] - x[name])
                    y[name] = y[name] - eta_l * g
            c_is[i] = {
                name: c_is[i][name] - c[name] + (x[name] - y[name]) / (local_steps * eta_l) for name in svr
            }
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
