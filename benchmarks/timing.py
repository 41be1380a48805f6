"""How benchmarks take time."""

from __future__ import annotations

import time
from collections.abc import Callable

REPEATS = 9


def best_seconds(work: Callable[[], object]) -> float:
    """The shortest of several runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def show(rows: dict[str, float]) -> None:
    """Prints times and their ratios to the first, because machines differ and are noisy."""
    unit, first = next(iter(rows.items()))
    for name, seconds in rows.items():
        print(f"{name:16} {seconds * 1e3:8.1f} ms {seconds / first:6.1f} x {unit}")
