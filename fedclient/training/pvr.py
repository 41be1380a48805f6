"""One local step, on lists of tensors. Pure.

    y_i <- y_i - eta_l * (g_i(y_i) + correction + prox_weight * (y_i - x))

The correction is c - c_i on S_svr (paper, Alg. I line 9) and nothing elsewhere (line 8); other algorithms
have other corrections, and a proximal term. Clipping and weight decay change the gradient before that;
common/server_step/local_rules.py says what they and momentum are to a variate.
"""

from __future__ import annotations

import torch
from torch import Tensor

Tensors = list[Tensor] | tuple[Tensor, ...]


EPSILON = 1e-6
"""Keeps a gradient of zero from being divided by; torch's clipping has the same."""


@torch.no_grad()
def clip(g: Tensors, norm: float) -> Tensors:
    """The gradient, scaled down if the norm of all of it together is larger than this."""
    if not g:
        return g
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))
    return torch._foreach_mul(g, torch.clamp(norm / (total + EPSILON), max=1.0))


@torch.no_grad()
def decay(g: Tensors, y: Tensors, weight: float) -> Tensors:
    """The gradient of the loss and of weight/2 * ||y||^2."""
    return torch._foreach_add(g, y, alpha=weight) if g else g


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
