"""One local step, on lists of tensors. Pure.

    y_i <- y_i - eta_l * (g_i(y_i) + correction + prox_weight * (y_i - x))

The correction is c - c_i on S_svr (paper, Alg. I line 9) and nothing elsewhere (line 8); other algorithms
have other corrections, and a proximal term. Momentum is for names outside S_svr alone: with it, the variate
after the round (line 11) would no longer be the mean gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

Tensors = list[Tensor] | tuple[Tensor, ...]


@torch.no_grad()
def direction(g: Tensors, correction: Tensors, y: Tensors, x: Tensors, prox_weight: float) -> Tensors:
    """The gradient with everything an algorithm adds to it; `correction` may be empty."""
    if prox_weight and g:
        g = torch._foreach_add(g, torch._foreach_sub(y, x), alpha=prox_weight)
    return torch._foreach_add(g, correction) if correction else g


@torch.no_grad()
def step(y: Tensors, towards: Tensors, eta_l: float) -> None:
    """One step in place."""
    if y:
        torch._foreach_add_(y, towards, alpha=-eta_l)


@torch.no_grad()
def momentum_step(y: Tensors, towards: Tensors, velocity: Tensors, eta_l: float, momentum: float) -> None:
    """One step in place with momentum; `velocity` starts at zero each round."""
    if y:
        torch._foreach_mul_(velocity, momentum)
        torch._foreach_add_(velocity, towards)
        torch._foreach_add_(y, velocity, alpha=-eta_l)
