"""The client's mathematics: one local step, and the control variate after a round. Pure; lists of tensors in
step.

    y_i <- y_i - eta_l * (g_i(y_i) + c - c_i)    on S_svr, without momentum       paper, Alg. I line 9
    y_i <- y_i - eta_l * g_i(y_i)                elsewhere, momentum if any       paper, Alg. I line 8
    c_i <- c_i - c + (x - y_i) / sum of the step sizes                            paper, Alg. I line 11

S_svr empty makes this FedAvg, S_svr of all names SCAFFOLD. The last line telescopes to the mean raw gradient
of the round only while S_svr has neither momentum nor weight decay, which is why it never has.
"""

from __future__ import annotations

import torch
from torch import Tensor

Tensors = list[Tensor] | tuple[Tensor, ...]


@torch.no_grad()
def svr_step(y: Tensors, g: Tensors, correction: Tensors, eta_l: float) -> None:
    """One step on S_svr, in place; `correction` is c - c_i, the same for all steps of a round."""
    if y:
        torch._foreach_add_(y, torch._foreach_add(g, correction), alpha=-eta_l)


@torch.no_grad()
def sgd_step(
    y: Tensors,
    g: Tensors,
    velocity: Tensors,
    eta_l: float,
    momentum: float,
) -> None:
    """One step outside S_svr, in place; `velocity` starts at zero each round."""
    if not y:
        return
    if momentum:
        torch._foreach_mul_(velocity, momentum)
        torch._foreach_add_(velocity, g)
        g = velocity
    torch._foreach_add_(y, g, alpha=-eta_l)


@torch.no_grad()
def next_c_i(
    c_i: Tensors,
    c: Tensors,
    x: Tensors,
    y: Tensors,
    step_sum: float,
) -> list[Tensor]:
    """The variate after a round whose step sizes add up to `step_sum` (K_i * eta_l if all are alike)."""
    return [a - b + (p - q) / step_sum for a, b, p, q in zip(c_i, c, x, y, strict=True)]
