"""Locks on open files, between processes. The kernel frees them when a process ends, also by SIGKILL."""

from __future__ import annotations

import fcntl
from typing import IO, Any


def lock(file: IO[Any], *, wait: bool = False, shared: bool = False) -> bool:
    """Locks a file until it is closed; returns False at once, or waits, while another process has it.

    Those who share a lock keep out only those who do not.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
