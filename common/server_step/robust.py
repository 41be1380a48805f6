"""How far the server trusts the updates it gets: which of them count, and how they are put together. Pure.

A bound on the norm leaves out updates that are far larger than the others. Trimmed mean and median take each
number over all clients and ignore the extremes, so that a few members cannot move x wherever they like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from common.errors import ConfigError
from common.tensors.layout import Float64, Purpose

Center = Callable[[Float64], Float64]
"""Numbers of S clients by n elements to one number per element."""
K = TypeVar("K")


@dataclass(frozen=True)
class Robustness:
    """Which updates of a run count, and how they are put together."""

    aggregation: str = "mean"
    """mean, median, or trimmed:F, which ignores the share F at either end."""
    norm_bound: float | None = None
    """Updates larger than this many times the median do not count; None: all do."""

    def __post_init__(self) -> None:
        if self.norm_bound is not None and not 1 < self.norm_bound < math.inf:
            raise ConfigError(f"--norm-bound must be above 1, got {self.norm_bound}")
        self.center()

    def center(self) -> Center | None:
        """What is taken of the numbers of all clients; None for their mean."""
        kind, _, share = self.aggregation.partition(":")
        if self.aggregation == "mean":
            return None
        if self.aggregation == "median":
            return lambda stack: np.median(stack, axis=0)
        try:
            if kind == "trimmed" and 0 < float(share) < 0.5:
                return lambda stack: trimmed_mean(stack, float(share))
        except ValueError:
            pass
        raise ConfigError(
            f"--aggregation must be mean, median or trimmed:F with F above 0 and below 0.5, "
            f"got {self.aggregation!r}"
        )

    @property
    def compares(self) -> bool:
        """Whether updates are compared with each other, so that all have to be there first."""
        return self.norm_bound is not None or self.aggregation != "mean"

    def outliers(self, norms: Mapping[K, Mapping[Purpose, float]]) -> dict[K, float]:
        """Those that do not count because one of their norms is too large, with how many times the median."""
        found: dict[K, float] = {}
        if self.norm_bound is None:
            return found
        for purpose in {purpose for each in norms.values() for purpose in each}:
            median = float(np.median([each[purpose] for each in norms.values()]))
            for key, each in norms.items():
                if each[purpose] > self.norm_bound * median:
                    times = each[purpose] / median if median else math.inf
                    found[key] = max(times, found.get(key, 0.0))
        return found


def trimmed_mean(stack: Float64, share: float) -> Float64:
    """The mean of each column without a share at either end: rounded down, but one of three at least."""
    cut = max(int(share * len(stack)), 1 if len(stack) >= 3 else 0)
    kept: Float64 = np.sort(stack, axis=0)[cut : len(stack) - cut]
    mean: Float64 = kept.mean(axis=0)
    return mean
