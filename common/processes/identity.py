"""Whether a process that has left its name somewhere still runs."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

from common.live.record import LiveProcess

_START, _STATE = 19, 0
"""Fields of /proc/PID/stat after the name: when it started, and its state."""


@cache
def own_process(pid: int) -> LiveProcess:
    """This process; `pid` is its id, which is another one after a fork."""
    found = _stat(pid)
    return LiveProcess(pid=pid, host=socket.gethostname(), ticks=int(found[_START]) if found else None)


def is_alive(process: LiveProcess) -> bool | None:
    """Whether a process runs; None where that cannot be seen from here."""
    if process.host != socket.gethostname():
        return None
    if process.ticks is not None and Path("/proc/self/stat").exists():
        found = _stat(process.pid)
        return bool(found) and int(found[_START]) == process.ticks and found[_STATE] not in ("Z", "X")
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # It runs, and belongs to somebody else.
    return True


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process; nothing where there is none, or no such kernel."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
