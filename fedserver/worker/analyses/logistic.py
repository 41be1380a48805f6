"""Multinomial logistic regression with a small L2, to its optimum: full batch L-BFGS in float64.

Convex, from zero and with one thread: the same examples make the same solution, to the bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

L2 = 1e-3
"""Weight of |W|^2 / 2 beside the mean loss, for features with a spread of 1. The bias is free."""
MEMORY = 10
"""Pairs of steps and changes of the gradient from which L-BFGS knows the curvature."""
MAX_STEPS = 500
TOLERANCE = 1e-5
"""Of the largest element of the gradient of the mean loss."""
MAX_HALVINGS = 30
ENOUGH = 1e-4
"""Share of the promised decrease that a step must bring (Armijo)."""


@dataclass(frozen=True)
class Regression:
    """A solution: scores are a linear function of features less their mean, over their spread."""

    mean: Tensor
    spread: Tensor
    weight: Tensor
    """(features + 1, classes); the last row is the bias."""

    def scores(self, features: Tensor) -> Tensor:
        """Of every class, for examples with these features: (n, d) to (n, classes)."""
        return _with_one((features.double() - self.mean) / self.spread) @ self.weight


def regression(features: Tensor, labels: Tensor, num_classes: int) -> Regression | None:
    """The classifier of features (n, d) with the least mean cross-entropy plus L2 |W|^2 / 2.

    None if features are not finite.
    """
    features = features.double()
    mean, spread = features.mean(0), features.std(0, correction=0)
    spread = torch.where(spread > 0, spread, torch.ones_like(spread))
    problem = _Problem(_with_one((features - mean) / spread), labels, num_classes)
    weight = _minimised(problem)
    return None if weight is None else Regression(mean, spread, weight)


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


class _Problem:
    """The mean loss as a function of the weights, and its gradient."""

    def __init__(self, inputs: Tensor, labels: Tensor, num_classes: int) -> None:
        self._inputs = inputs
        self._transposed = inputs.T.contiguous()  # Products with it are several times as fast.
        self._labels = labels[:, None]
        self.start = inputs.new_zeros(inputs.shape[1], num_classes)

    def at(self, weight: Tensor) -> tuple[float, Tensor]:
        n = len(self._inputs)
        logs = (self._inputs @ weight).log_softmax(1)
        penalised = weight.clone()
        penalised[-1] = 0  # Not the bias.
        loss = -logs.gather(1, self._labels).mean() + L2 / 2 * penalised.square().sum()
        errors = logs.exp().scatter_add(1, self._labels, -torch.ones_like(logs[:, :1]))
        return float(loss), self._transposed @ errors / n + L2 * penalised


def _minimised(problem: _Problem) -> Tensor | None:
    weight = problem.start
    loss, gradient = problem.at(weight)
    pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=MEMORY)
    for _ in range(MAX_STEPS):
        if not torch.isfinite(gradient).all():
            return None
        if gradient.abs().max() <= TOLERANCE:
            break
        move = _direction(gradient, pairs)
        slope = float((move * gradient).sum())
        for halvings in range(MAX_HALVINGS):
            step = move * 0.5**halvings
            next_loss, next_gradient = problem.at(weight + step)
            if next_loss <= loss + ENOUGH * 0.5**halvings * slope:
                break
        else:
            break  # As near as float64 comes.
        pairs.append((step, next_gradient - gradient))
        weight, loss, gradient = weight + step, next_loss, next_gradient
    return weight


def _direction(gradient: Tensor, pairs: deque[tuple[Tensor, Tensor]]) -> Tensor:
    """Against the gradient, and through the inverse of the curvature as far as the last steps tell it."""
    found, shares = -gradient, []
    for step, change in reversed(pairs):
        share = (step * found).sum() / (step * change).sum()
        shares.append(share)
        found = found - share * change
    if pairs:
        step, change = pairs[-1]
        found = found * ((step * change).sum() / change.square().sum())
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        found = found + step * (share - (change * found).sum() / (step * change).sum())
    return found
