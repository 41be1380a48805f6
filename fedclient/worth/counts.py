"""How often a model takes one class for another, and how sure one can be of what follows from that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.data.batches import Batches
from common.evaluate import scores

Z = 1.959963984540054
"""Of 95 % in a normal distribution."""


@dataclass(frozen=True)
class Share:
    """A share of some examples, with Wilson's interval of 95 %."""

    hits: int
    examples: int

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true share is, in 95 of 100 such intervals."""
        return wilson(self.hits, self.examples)

    def text(self) -> str:
        """For people."""
        if not self.examples:
            return "-"
        low, high = self.interval
        return f"{self.hits / self.examples:.1%} ({low:.1%} to {high:.1%})"


def wilson(hits: int, examples: int) -> tuple[float, float]:
    """Wilson's score interval of a share."""
    if not examples:
        return 0.0, 1.0
    p, weight = hits / examples, Z * Z / examples
    middle = (p + weight / 2) / (1 + weight)
    half = Z / (1 + weight) * math.sqrt(p * (1 - p) / examples + weight / (4 * examples))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Confusion:
    """Examples by true class (rows) and by the class that the model says (columns)."""

    matrix: tuple[tuple[int, ...], ...]

    @property
    def accuracy(self) -> Share:
        """Right answers among all."""
        hits = sum(row[k] for k, row in enumerate(self.matrix))
        return Share(hits, sum(map(sum, self.matrix)))

    def recall(self, k: int) -> Share:
        """Right answers among the examples of a class."""
        return Share(self.matrix[k][k], sum(self.matrix[k]))


def confusion(model: nn.Module, batches: Batches, indices: Tensor, num_classes: int) -> Confusion:
    """Of a model on some examples."""
    found, labels = scores(model, batches, indices).argmax(1), batches.labels[indices]
    counts = torch.bincount(labels * num_classes + found, minlength=num_classes * num_classes)
    return Confusion(tuple(map(tuple, counts.reshape(num_classes, num_classes).tolist())))
