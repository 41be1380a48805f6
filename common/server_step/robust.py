"""How far the server trusts updates: how much of each counts, and how they are put together. Pure.

A bound on the norm takes weight from updates that are larger than the others: the larger, the less counts.
Who was far beyond it round after round is on probation: nothing of it counts until it has kept within the
bound for as many rounds.
Trimmed mean and median take each number over all clients and ignore the extremes, so that a few members
cannot move x wherever they like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from common.errors import ConfigError
from common.tensors.layout import Float64, Purpose

CUT = 1.2
"""What is this many times as large as allowed does not count at all; what is between counts in proportion. A
plain clip would let an update that is far too large move x as far as is allowed, in every round."""
VARIATE_ROOM = 3.0
"""Variates of honest clients scatter more than their models do, and are bounded by these already."""
MOST_STEPS = 10.0
"""A client has room for at most this many times the median number of steps."""
LONGEST_PROBATION = 10
"""Rounds that make up for any number of rounds in which an update was far too large."""

Center = Callable[[Float64], Float64]
"""Numbers of S clients by n elements to one number per element."""
K = TypeVar("K")


@dataclass(frozen=True)
class Size:
    """How large an update is."""

    norms: Mapping[Purpose, float]
    """How far it moves x, the buffers and c_i."""
    steps: int
    """K_i."""


@dataclass(frozen=True)
class Clip:
    """How much of an update counts."""

    times_usual: float
    """Its largest norm, in units of what is usual in the round."""
    share: float
    """How much of its weight y_i and the buffers keep."""
    variate_share: float
    """How much of the move of c_i counts. c_i follows from y_i, so it is not more."""
    far_too_large: bool
    """Whether its size alone is why nothing of it counts."""

    def with_other(self, other: Clip | None) -> Clip:
        """The stricter of what two norms of an update lead to."""
        if other is None:
            return self
        return Clip(
            max(self.times_usual, other.times_usual),
            min(self.share, other.share),
            min(self.variate_share, other.variate_share),
            self.far_too_large or other.far_too_large,
        )


@dataclass(frozen=True)
class Robustness:
    """How much of an update counts, and how updates are put together."""

    aggregation: str = "mean"
    """mean, median, or trimmed:F, which ignores the share F at either end."""
    norm_bound: float | None = None
    """Updates may be this many times as large as is usual in the round; None: as large as they like."""

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

    def clips(self, sizes: Mapping[K, Size], on_probation: Container[K] = ()) -> dict[K, Clip]:
        """Updates of which not all counts. What does not count at all does not say what is usual either."""
        if self.norm_bound is None:
            return {}
        counting = {key: size for key, size in sizes.items() if key not in on_probation}
        # Most are honest: where more than half would be out, they differ by nature.
        if 2 * len(counting) < len(sizes):
            counting, on_probation = dict(sizes), ()
        while True:
            found = _clips(self.norm_bound, sizes, counting)
            left = {key: size for key, size in counting.items() if found[key].share > 0}
            if len(left) == len(counting) or 2 * len(left) < len(sizes):
                break
            counting = left
        for key in sizes:
            if key in on_probation:
                found[key] = replace(found[key], share=0.0, variate_share=0.0)
        return {key: clip for key, clip in found.items() if clip.variate_share < 1}


def _clips(bound: float, sizes: Mapping[K, Size], counting: Mapping[K, Size]) -> dict[K, Clip]:
    """How much of each update counts if `counting` says what is usual."""
    found: dict[K, Clip] = {}
    for purpose in {purpose for size in sizes.values() for purpose in size.norms}:
        for key, times in _times_usual(purpose, sizes, counting).items():
            share = min(1.0, max(0.0, (CUT - times / bound) / (CUT - 1)))
            whole = 1.0 if purpose is Purpose.CONTROL else share
            found[key] = Clip(times, whole, share, far_too_large=whole == 0).with_other(found.get(key))
    return found


def strikes_after(strikes: Mapping[K, int], counted: Iterable[K], clips: Mapping[K, Clip]) -> dict[K, int]:
    """In how many rounds each has been far too large that it has not made up for yet; none: no entry."""
    after = dict(strikes)
    for key in counted:
        struck = key in clips and clips[key].far_too_large
        after[key] = min(after.get(key, 0) + 1, LONGEST_PROBATION) if struck else after.get(key, 0) - 1
    return {key: count for key, count in after.items() if count > 0}


def on_probation(strikes: Mapping[K, int]) -> list[K]:
    """Who does not count, however large its next update is: one round within the bound makes up for one."""
    return [key for key, count in strikes.items() if count > 1]


def _times_usual(purpose: Purpose, sizes: Mapping[K, Size], counting: Mapping[K, Size]) -> dict[K, float]:
    """The norm of each update in units of what is usual for it: the median, or more for who takes more steps.

    The median norm per step, times the client's own steps, is usual where that is more than the median norm,
    so that a shard larger than the others is no reason to count less. A variate is a mean over steps, and
    does not grow with their number.
    """
    norms = {key: size.norms[purpose] for key, size in sizes.items()}
    usual = dict.fromkeys(sizes, _median(norms[key] for key in counting))
    if purpose is Purpose.CONTROL:
        usual = {key: VARIATE_ROOM * median for key, median in usual.items()}
    else:
        per_step = _median(norms[key] / size.steps for key, size in counting.items())
        most_steps = MOST_STEPS * _median(size.steps for size in counting.values())
        usual = {key: max(usual[key], per_step * min(size.steps, most_steps)) for key, size in sizes.items()}
    return {key: _ratio(norm, usual[key]) for key, norm in norms.items()}


def _ratio(norm: float, usual: float) -> float:
    if norm <= usual:  # Both may be zero, or beyond all bounds.
        return norm / usual if 0 < usual < math.inf else 1.0
    return norm / usual if usual else math.inf


def _median(values: Iterable[float]) -> float:
    return float(np.median([*values]))


def trimmed_mean(stack: Float64, share: float) -> Float64:
    """The mean of each column without a share at either end: rounded down, but one of three at least."""
    cut = max(int(share * len(stack)), 1 if len(stack) >= 3 else 0)
    kept: Float64 = np.sort(stack, axis=0)[cut : len(stack) - cut]
    mean: Float64 = kept.mean(axis=0)
    return mean
