"""How a process keeps memory that it will need again; of the C library's, where that can be told.

Transfers take and free pieces of a megabyte, one after the other. glibc would have them in as many arenas as
there are threads, give each back to the kernel at once, and have every page of the next one fetched and
cleared again: that takes longer than to fill it. So there is one arena, and it keeps what is used again.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of mallopt(3)."""
LARGE_BYTES = 32 << 20
"""The most that may come from the arena; what is larger has pages of its own, and large ones."""
NEVER = 1 << 30
_C = ctypes.CDLL(None)


def keep_pages(idle_bytes: int) -> None:
    """Lets so many bytes lie idle at the end of the only arena. Before threads are started."""
    _set(_ARENA_MAX, 1)
    keep_up_to(idle_bytes)


def keep_up_to(idle_bytes: int) -> None:
    """Lets so many bytes lie idle at the end of an arena."""
    _set(_MMAP_THRESHOLD, LARGE_BYTES)
    _set(_TRIM_THRESHOLD, idle_bytes)


def keep_all() -> None:
    """Gives nothing back."""
    _set(_MMAP_THRESHOLD, NEVER)
    _set(_TRIM_THRESHOLD, NEVER)


def give_back() -> None:
    """Gives back what is free."""
    trim = getattr(_C, "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """What the process has in memory now; 0 where the system does not tell."""
    try:
        with Path("/proc/self/statm").open("rb", buffering=0) as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(_C, "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


@contextmanager
def loading() -> Iterator[None]:
    """Around the imports of large libraries and whatever else stays until the end of the process.

    The garbage collector would look through it while it grows, and in every round again: a tenth of the time
    of an import of torch, and of a client in a round without training.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
