"""Work on large arrays, shared out to the cores of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

MOST = 4
"""Threads that numpy's calls keep busy; more would wait for the interpreter between two calls."""
T = TypeVar("T")
R = TypeVar("R")


def num_threads() -> int:
    """As many as this process may use cores, up to what is of use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)


def spread(work: Callable[[T], R], parts: Iterable[T]) -> Iterator[R]:
    """What the work gives for each part, in their order; parts are worked on at the same time."""
    return _pool(os.getpid()).map(work, parts)


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """Kept, because starting a thread takes longer than a part may; a forked process has none of them."""
    return ThreadPoolExecutor(num_threads(), thread_name_prefix="cores")
