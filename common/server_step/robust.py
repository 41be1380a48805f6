"""How far the server trusts the updates it gets: which of them count, and how they are put together.

A bound on the norm leaves out updates that are far larger than the others. Trimmed mean and median take each
number over all clients and ignore the extremes, so that a few members cannot move x wherever they like. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from common.errors import ConfigError
from common.server_step.aggregate import Aggregate
from common.tensors.layout import Array, Flat, Float64, Layout, Purpose, to_float64

Center = Callable[[Float64], Float64]
"""Numbers of S clients by n elements to one number per element."""
K = TypeVar("K")

STACK_ELEMENTS = 1 << 22
"""Numbers of all clients that are put side by side at a time, whatever the number of clients."""


@dataclass(frozen=True)
class Robustness:
    """The rules of a run."""

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

    def aggregate(self, layout: Layout, seen: Flat) -> Aggregate:
        """What takes in the updates of a round."""
        center = self.center()
        return Aggregate(layout, seen) if center is None else RobustAggregate(layout, seen, center)

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


def move_norms(layout: Layout, seen: Flat, values: Flat, c_i: Flat | None) -> dict[Purpose, float]:
    """||y_i - x||, the same of buffers, and ||c_i+ - c_i||; `c_i` is the client's variate before."""
    measured = Aggregate(layout, seen)
    measured.add(values, c_i, 1.0)
    return measured.norms()


class RobustAggregate(Aggregate):
    """Keeps hold of the updates, which lie in files, until all are there."""

    def __init__(self, layout: Layout, seen: Flat, center: Center) -> None:
        super().__init__(layout, seen)
        self._center = center
        self._held: list[tuple[Flat, Flat | None]] = []

    def add(self, up: Flat, c_i: Flat | None, weight: float) -> None:
        """Takes in one update."""
        super().add(up, c_i, weight)
        self._held.append((up, c_i))

    def _moves(self, index: int) -> Float64:
        """As many times the center as there are updates: what a sum is to the mean."""
        dtype = self._layout.specs[index].dtype
        pairs: list[tuple[Array, Array]] = [
            (self._layout.array(up, index).reshape(-1), self._base(index, c_i).reshape(-1))
            for up, c_i in self._held
        ]
        total = np.empty(self._layout.specs[index].num_elements)
        width = max(1, STACK_ELEMENTS // len(pairs))
        for start in range(0, len(total), width):
            block = slice(start, start + width)
            moves = [to_float64(y[block], dtype) - to_float64(base[block], dtype) for y, base in pairs]
            total[block] = self._center(np.stack(moves)) * len(pairs)
        return total
