"""Lets as many clients of one machine train at a time as it has cores.

More at once only get in each other's way: ten clients on two cores finish a round sooner if two train and
eight wait. The gate is a file lock per core, which the kernel releases even if a client is killed. Of several
clients in one process one trains at a time, because torch has one random generator for all threads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.locks import lock
from common.models.build import DRAWING


@contextmanager
def free_core(index: int, threads: int) -> Iterator[None]:
    """Waits until cores are free for this many threads, and holds them while the block runs.

    `index` is the client's: those that have to wait do not all wait for the same one.
    """
    groups = max(1, len(os.sched_getaffinity(0)) // threads)
    folder = Path(tempfile.gettempdir()) / f"fedpvr-gate-{os.getuid()}"
    files = []
    try:
        # Where the folder cannot be used there is no gate; training is only slower then.
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            files = [(folder / f"core-{k}").open("w") for k in range(groups)]
        with DRAWING:
            if files and not any(lock(file) for file in files):
                lock(files[index % groups], wait=True)
            yield
    finally:
        for file in files:
            file.close()
