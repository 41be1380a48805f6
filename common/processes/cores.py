"""Work on large arrays, shared out to the cores of this machine, and threads that are kept."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

MOST = 4
"""Threads that numpy's calls keep busy; more would wait for the interpreter between two calls."""
AHEAD = 16
"""Parts that wait for each thread."""
T = TypeVar("T")
R = TypeVar("R")


def num_threads() -> int:
    """As many as this process may use cores, up to what is of use."""
    return min(len(os.sched_getaffinity(0)), MOST)


def spread(work: Callable[[T], R], parts: Iterable[T]) -> Iterator[R]:
    """What the work gives for each part, in their order; parts are worked on at the same time.

    They are asked for as they are needed: what a part needs is not there for all of them at once.
    """
    pool, waiting = threads("cores", num_threads()), deque[Future[R]]()
    try:
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > AHEAD * num_threads():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:  # Of one part that failed: nobody wants the others any more.
            future.cancel()


def threads(name: str, most: int) -> ThreadPoolExecutor:
    """Threads for one kind of work. They are kept, because to start one takes longer than a part may."""
    return _threads(name, most, os.getpid())


@cache
def _threads(name: str, most: int, pid: int) -> ThreadPoolExecutor:
    """A forked process has none of those that there were."""
    return ThreadPoolExecutor(most, thread_name_prefix=name)
