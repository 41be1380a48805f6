"""What the process takes from the system, and gives back: files and memory.

A round takes tens of pieces of a megabyte for its broadcast and lets those of the round before go, so it
keeps what a round needs. What many clients have taken, up to a megabyte for each connection, goes back
before the step, which has the next x beside this one in memory.
"""

from __future__ import annotations

import gc
import resource

from common.errors import ConfigError
from common.processes import memory

OTHER_FILES = 256
"""What a server has open besides a connection for every client: updates that come in, other callers."""
KEPT_BYTES = 128 << 20
"""What may lie idle in memory."""
FEW = 16
"""Clients whose connections take so little that what is free can be kept for the next round."""


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
    """Settles how memory is kept; what was imported is never garbage, and no round looks through it."""
    memory.keep_pages(KEPT_BYTES)
    gc.freeze()


def give_back(transfers: int) -> None:
    """Gives back what is free after so many transfers, if they are many."""
    if transfers > FEW:
        memory.give_back()
