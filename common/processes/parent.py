"""A child process that does not outlive its parent, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Asks the kernel for a signal when the parent dies; `parent` is its process id, where it is known.

    Only Linux can do that. A parent that has died before is noticed by its id.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)
