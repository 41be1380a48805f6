"""Methods that ran with the same seeds, compared: differences by seed, intervals, speed-ups with bounds.

Pure: numbers in, numbers out. A run that ended before it reached its target is not left out, which would
favour whoever fails most: its rounds are a bound, and so is what is made of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
"""Share of the resamples that an interval holds."""


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval; of a single value there is none."""

    mean: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Interval:
        """In another unit."""
        edges = (None if edge is None else factor * edge for edge in (self.low, self.high))
        return Interval(factor * self.mean, *edges)

    def text(self, form: str = ".1f") -> str:
        """For a table: `1.3 [0.4, 2.1]`."""
        if self.low is None or self.high is None:
            return f"{self.mean:{form}}"
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


def interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The mean, and where 95 % of the means of resamples lie; the same whatever the order of the values.

    The percentile bootstrap is too narrow for a handful of values: of three it is their smallest and largest.
    """
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean)
    drawn = np.random.default_rng(seed).choice(np.sort(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(drawn.mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(low), float(high))


def differences(values: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
    """Method minus baseline, for every seed that both have."""
    return [values[seed] - baseline[seed] for seed in sorted(values.keys() & baseline.keys())]


@dataclass(frozen=True)
class Reached:
    """When a run reached a target, or how long it has not."""

    rounds: int
    censored: bool = False
    """Whether it ended, after that many rounds, without having reached it."""

    def text(self) -> str:
        """For a table: `12`, or `>20`."""
        return f">{self.rounds}" if self.censored else str(self.rounds)


@dataclass(frozen=True)
class Bound:
    """A number that is known, or known to be larger (`>`) or smaller (`<`) than this."""

    value: float
    sign: str = ""

    def text(self, form: str = ".1f", unit: str = "") -> str:
        """For a table: `>2.50x`."""
        return f"{self.sign}{self.value:{form}}{unit}"


def mean_rounds(reached: Sequence[Reached]) -> Bound:
    """The mean over seeds; a bound once one of them has not reached the target."""
    return Bound(
        statistics.fmean(each.rounds for each in reached), ">" if any(r.censored for r in reached) else ""
    )


def speed_up(method: Reached, baseline: Reached) -> Bound | None:
    """How many times fewer rounds a method needs; None where neither has reached the target."""
    if method.censored and baseline.censored:
        return None
    sign = "<" if method.censored else ">" if baseline.censored else ""
    return Bound(baseline.rounds / method.rounds, sign)


def mean_speed_up(method: Mapping[int, Reached], baseline: Mapping[int, Reached]) -> Bound | None:
    """The geometric mean over the seeds that both have: turned round, it is the inverse.

    None where there is no bound: no seed, one in which neither has reached the target, or bounds on
    different sides.
    """
    found = [speed_up(method[seed], baseline[seed]) for seed in sorted(method.keys() & baseline.keys())]
    bounds = [bound for bound in found if bound is not None]
    signs = {bound.sign for bound in bounds} - {""}
    if not bounds or len(bounds) < len(found) or len(signs) > 1:
        return None
    mean = statistics.geometric_mean(bound.value for bound in bounds)
    return Bound(mean, max(signs, default=""))


Curve = tuple[Sequence[float], Sequence[float]]
"""x and y."""


@dataclass(frozen=True)
class Band:
    """A curve over seeds: the mean and its interval at every x that all of them have."""

    xs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def band(curves: Sequence[Curve]) -> Band:
    """The curves of several seeds as one; it ends where the first of them does."""
    tables = [dict(zip(xs, ys, strict=True)) for xs, ys in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    found = [interval([table[x] for table in tables]) for x in shared]
    lows = [each.mean if each.low is None else each.low for each in found]
    highs = [each.mean if each.high is None else each.high for each in found]
    return Band(shared, [each.mean for each in found], lows, highs)
