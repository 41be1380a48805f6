"""Runs a program that kills itself at a point: python -m tests.killpoint POINT COUNT PROGRAM ARGUMENT...

SIGKILL comes when the point is reached for the COUNT-th time; with a negative COUNT the disk is full then.
Points are functions of the real code, wrapped from outside.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

POINTS = {
    # The server
    "before broadcast": ("fedserver.run.rounds", "encode", "before"),
    "mid-upload, server": ("fedserver.store.spool", "Upload.add", "before"),
    "before the update counts": ("fedserver.store.spool", "Upload.keep", "before"),
    "mid-fold": ("fedserver.store.variates", "Variates.stage", "before"),
    "after the fold": ("fedserver.run.fold", "Fold.finish", "after"),
    "before the traffic": ("fedserver.store.run_dir", "RunDir.append_traffic", "before"),
    "before the checkpoint": ("fedserver.store.checkpoints", "Checkpoints.write", "before"),
    "after the checkpoint": ("fedserver.store.checkpoints", "Checkpoints.write", "after"),
    "mid-count": ("fedserver.store.variates", "Variates.count", "after"),
    "before the record": ("fedserver.store.run_dir", "RunDir.append_round", "before"),
    # Either
    "before fsync": ("os", "fsync", "before"),
    "after fsync": ("os", "fsync", "after"),
    # The client
    "mid-download": ("fedclient.rpc.download", "Download.add", "after"),
    "before training": ("fedclient.training.train", "Trainer.train", "before"),
    "mid-training": ("fedclient.training.local_steps", "LocalSteps.take", "after"),
    "before the update is kept": ("fedclient.store.state", "RunFiles.store_update", "before"),
    "after the update is kept": ("fedclient.store.state", "RunFiles.store_update", "after"),
    "mid-upload": ("fedclient.rpc.connection", "Connection.push", "before"),
    "before the variate is settled": ("fedclient.store.state", "RunFiles.settle", "before"),
}


def arm(point: str, count: int) -> None:
    """Puts the trap in place."""
    module, _, where = POINTS[point]
    owner: Any = importlib.import_module(module)
    *path, name = POINTS[point][1].split(".")
    for part in path:
        owner = getattr(owner, part)
    inner: Callable[..., Any] = getattr(owner, name)
    left = [abs(count)]

    def close() -> None:
        if count < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "disk")
        os.kill(os.getpid(), signal.SIGKILL)

    def trapped(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and where == "before":
            close()
        result = inner(*arguments, **named)
        if left[0] == 0:
            close()
        return result

    setattr(owner, name, trapped)


def main() -> None:
    """Runs the program."""
    point, count, program = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    arm(point, count)
    sys.argv = [program, *sys.argv[4:]]
    importlib.import_module(f"{program}.cli").main()


if __name__ == "__main__":
    main()
