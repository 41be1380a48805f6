"""What the process takes from the system, and gives back: files and memory.

A round takes tens of pieces of a megabyte for its broadcast and lets those of the round before go. The C
library would have such pieces in as many arenas as there are threads, and fetch fresh pages for them again
and again, which takes longer than to fill them. So there is one arena, and it keeps what a round needs. What
many transfers at once have taken goes back before the step, which has the next x beside this one in memory.
"""

from __future__ import annotations

import ctypes
import resource

from common.errors import ConfigError

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of mallopt(3)."""
OTHER_FILES = 256
"""That a server has open beside a connection for every client: updates that come in, other callers."""
LARGE_BYTES = 32 << 20
"""The most that may come from the arena; what is larger has pages of its own, and large ones."""
KEPT_BYTES = 128 << 20
"""What may lie idle at the end of the arena."""
MANY = 8
"""Transfers whose memory is worth giving back."""


def allow_files(num_clients: int) -> None:
    """Connections and updates of a round are files; systems allow more of them than they give at first."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    needed = num_clients + OTHER_FILES
    if most != resource.RLIM_INFINITY and needed > most:
        raise ConfigError(
            f"--num-clients {num_clients} needs {needed} open files, this system allows {most}; "
            f"raise it with: ulimit -Hn {needed}"
        )


def keep_pages() -> None:
    """Settles how memory is kept, if the C library is one that can be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in (
            (_ARENA_MAX, 1),
            (_MMAP_THRESHOLD, LARGE_BYTES),
            (_TRIM_THRESHOLD, KEPT_BYTES),
        ):
            mallopt(parameter, value)


def give_back(transfers: int) -> None:
    """Gives back what is free after so many transfers, if they are many and the C library can be told."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if transfers >= MANY and trim is not None:
        trim(0)
