"""A task on a node of a cluster, which has the same environment and the same folders as whoever asks."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from common.errors import ConfigError
from common.locks import lock
from fedlab.engine.task import Task, begin, wait_for
from fedlab.processes import children

FREE_S = 60.0
"""How long the run of a node that was lost may hold its folder."""
LOOK_S = 0.2


def run_on_node(task: Task, here: Path, sign: Path) -> int:
    """Runs a task as a process of this machine; returns its exit code.

    `here` is where its paths and plug-ins are from; `sign` is a file that who shares the folder sees.
    """
    for path in (here, sign):
        if not path.exists():
            raise ConfigError(
                f"node {socket.gethostname()} has no {path.parent if path is sign else path} of ours: "
                "with --engine ray, the working directory and --out must be folders that all nodes share"
            )
    os.chdir(here)
    _wait_until_free(task.run_dir)
    child = begin(task, children.start)
    try:
        return wait_for(child, task)
    finally:
        children.stop([child])


def _wait_until_free(run_dir: Path) -> None:
    """Waits while a process that is about to end still holds the folder."""
    held, deadline = run_dir / ".lock", time.monotonic() + FREE_S
    while held.exists() and time.monotonic() < deadline:
        with held.open("w") as file:
            if lock(file):
                return
        time.sleep(LOOK_S)
