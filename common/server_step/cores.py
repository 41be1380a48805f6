"""Work on many blocks of numbers, shared out to the cores of the machine.

numpy lets go of the interpreter while it works on a block, so that threads are enough. What comes out does
not depend on how many there are: results come in the order of the work, and nobody adds up across blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, pairwise
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST = 4
"""Threads beyond these would wait for the memory."""
EACH = 4
"""Items that are worth a thread."""


def shared_out(work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
    """What `work` makes of each item, in their order: it gets a share of them on every core."""
    threads = min(MOST, len(os.sched_getaffinity(0)), len(items) // EACH)
    if threads < 2:
        return work(items)
    ends = [len(items) * k // threads for k in range(threads + 1)]
    shares = [items[a:b] for a, b in pairwise(ends)]
    return [*chain.from_iterable(_pool(os.getpid()).map(work, shares))]


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """Kept from step to step; a forked process has none of the threads."""
    return ThreadPoolExecutor(MOST, thread_name_prefix="step")
