"""A process of ours beside another, for what must not cost that one anything.

It hears of the other's end, however that comes, by its own standard input, which is a pipe that nobody writes
to; then it may finish what it has begun.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

NICE = 10
"""What it accompanies comes first."""
STANDARD_INPUT = 0


@contextmanager
def companion(
    module: str,
    arguments: Sequence[str],
    patience_s: float,
    *,
    overdue: Callable[[], None] = lambda: None,
    pass_fds: Sequence[int] = (),
) -> Iterator[None]:
    """Runs `python -m module` while the block does.

    At the end it has so many seconds; then `overdue` is called, and it is ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments], stdin=subprocess.PIPE, pass_fds=pass_fds
    )
    assert process.stdin is not None, "it is a pipe"
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            overdue()
            process.terminate()
            process.wait()


def accompany() -> None:
    """To be called first in such a process. Ctrl-C is for the other one, whose end is the end of this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)


def is_left(at_most_s: float | None) -> bool:
    """Waits for the end of the other process, but not for longer than this; whether it has come."""
    return bool(select.select([STANDARD_INPUT], [], [], at_most_s)[0])
