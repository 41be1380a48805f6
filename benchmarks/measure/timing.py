"""How benchmarks take time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

REPEATS = 9


def best_seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The shortest of several runs."""
    return min(_seconds(work) for _ in range(repeats))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(
    variants: Mapping[str, Callable[[], object]], repeats: int = REPEATS
) -> dict[str, tuple[float, float]]:
    """Best and median seconds of each, measured in turn: what disturbs the machine disturbs all of them."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, work in variants.items():
            times[name].append(_seconds(work))
    return {name: (min(found), median(found)) for name, found in times.items()}


def best_of_each(variants: Mapping[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """The best seconds of each, measured in turn."""
    return {name: best for name, (best, _) in interleaved(variants, repeats).items()}
