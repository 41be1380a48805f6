"""Runs a program with a trap in it: python -m tests.killpoint ACTION POINT COUNT PROGRAM ARGUMENT...

When the point is reached for the COUNT-th time, or every time if COUNT is 0, the process is killed (ACTION
`kill`), is stopped until it gets SIGCONT (`stop`), waits for a file called `go` while its other threads go on
(`hold`), finds its disk full (`full`), or says so (`say`). Points are functions of the real code, wrapped
from outside.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POINTS = {
    # The server
    "before gathering": ("fedserver.members.members", "Members.gather", "before"),
    "a client asks for a round": ("fedserver.run.board", "Board.next_round", "before"),
    "a sign of life": ("fedserver.rpc.service", "Service.renew", "before"),
    "before broadcast": ("fedserver.run.board", "Board.open_round", "before"),
    "mid-upload, server": ("fedserver.store.spool", "Upload.add", "before"),
    "before the update counts": ("fedserver.store.spool", "Upload.keep", "before"),
    "mid-fold": ("fedserver.store.variates", "Variates.stage", "before"),
    "after the fold": ("fedserver.run.fold", "Fold.close", "after"),
    "before the traffic": ("fedserver.store.run_dir", "RunDir.append_traffic", "before"),
    "before the checkpoint": ("fedserver.store.checkpoints", "Checkpoints.write", "before"),
    "after the checkpoint": ("fedserver.run.run", "sync", "after"),
    "mid-count": ("fedserver.store.variates", "Variates.count", "after"),
    "before the record": ("fedserver.store.run_dir", "RunDir.append_round", "before"),
    "before the evaluation is written": ("fedserver.store.run_dir", "RunDir.amend_round", "before"),
    "after the best is kept": ("fedserver.results.best", "Best.consider", "after"),
    "mid-checkpoint, simulated": ("fedserver.store.checkpoints", "LateCheckpoints.prune", "before"),
    "before a client remembers": ("fedlab.direct.kept_state", "KeptRunState.write", "before"),
    "after a client remembers": ("fedlab.direct.kept_state", "KeptRunState.write", "after"),
    # Either
    "mid-file": ("common.tensors.safetensors_files", "write_at", "before"),
    "before fsync": ("os", "fsync", "before"),
    "after fsync": ("os", "fsync", "after"),
    # The client
    "mid-download": ("fedclient.rpc.download", "Download.add", "after"),
    "a round has come": ("fedclient.rpc.connection", "Connection.pull", "after"),
    "before training": ("fedclient.training.train", "Trainer.train", "before"),
    "before the first gradient": ("fedclient.training.train", "Trainer.first_variate", "before"),
    "before the last evaluation": ("fedclient.training.train", "Trainer.evaluate", "before"),
    "mid-training": ("fedclient.training.local_steps", "LocalSteps.take", "after"),
    "before a save": ("fedclient.midround.file", "MidRoundFile.write", "before"),
    "after a save": ("fedclient.midround.file", "MidRoundFile.write", "after"),
    "before the save is dropped": ("fedclient.midround.file", "MidRoundFile.drop", "before"),
    "before the variate is written": ("fedclient.store.state", "RunFiles.write", "before"),
    "after the variate is written": ("fedclient.store.state", "RunFiles.write", "after"),
    "before the update is kept": ("fedclient.store.state", "RunFiles.store_update", "before"),
    "after the update is kept": ("fedclient.store.state", "RunFiles.store_update", "after"),
    "mid-upload": ("fedclient.rpc.connection", "Connection.push", "before"),
    "before the variate is settled": ("fedclient.store.state", "RunFiles.settle", "before"),
}


def _kill(said: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(said: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hold(said: str) -> None:
    while not Path("go").exists():
        time.sleep(0.02)


def _full(said: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "disk")


def _say(said: str) -> None:
    print(said, flush=True)


ACTIONS = {"kill": _kill, "stop": _stop, "hold": _hold, "full": _full, "say": _say}


def trap(action: str, point: str, count: int = 1) -> tuple[str, ...]:
    """What to start a program through; several can be added up."""
    assert action in ACTIONS
    assert point in POINTS
    return "tests.killpoint", action, point, str(count)


def arm(action: str, point: str, count: int) -> None:
    """Puts the trap in place."""
    module, path, where = POINTS[point]
    owner: Any = importlib.import_module(module)
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    inner: Callable[..., Any] = getattr(owner, name)
    numbers = itertools.count(1)

    def trapped(*arguments: Any, **named: Any) -> Any:
        number = next(numbers)
        due = count in (0, number)
        if due and where == "before":
            ACTIONS[action](f"{point}: {number}")
        result = inner(*arguments, **named)
        if due and where == "after":
            ACTIONS[action](f"{point}: {number}")
        return result

    setattr(owner, name, trapped)


def main() -> None:
    """Runs the program."""
    while sys.argv[0] not in ("fedserver", "fedclient", "fedlab"):
        action, point, count, *program = sys.argv[1:]
        arm(action, point, int(count))
        sys.argv = program
    importlib.import_module(f"{sys.argv[0]}.cli").main()


if __name__ == "__main__":
    main()
