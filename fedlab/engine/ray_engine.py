"""Tasks on the nodes of a Ray cluster. A task whose node is lost runs again on another."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import ray
from ray.exceptions import RayError, RayTaskError

from common.errors import ConfigError
from common.events import Emit
from fedlab.engine.node import run_on_node
from fedlab.engine.task import Ended, Task
from fedlab.events import ClusterJoined

RETRIES = 10
"""Nodes that a task may lose before it has failed."""
LISTEN_S = 10.0
NO_CODE = 1
"""Exit code of a task whose process nobody has heard the end of."""


class RayEngine:
    """A Ray task for each task, with one CPU."""

    def __init__(
        self,
        address: str | None,
        jobs: int | None,
        folder: Path,
        emit: Emit,
        flags: tuple[str, ...] = (),
        gpus: int = 0,
    ) -> None:
        """Without an address it is the cluster that RAY_ADDRESS names, or one of this machine for as long.

        Every task is given these flags in addition, and so many GPUs to itself.
        """
        self._flags = flags
        self._jobs = jobs
        self._waiting: deque[Task] = deque()
        self._running: dict[ray.ObjectRef, Task] = {}
        self._here = Path.cwd()
        self._sign = folder / f".ray-{secrets.token_hex(8)}"
        _join(address)
        self._run = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(run_on_node)
        self._sign.touch()
        alive = [node for node in ray.nodes() if node["Alive"]]
        cpus = sum(node["Resources"].get("CPU", 0) for node in alive)
        emit(ClusterJoined(nodes=len(alive), cpus=int(cpus)))

    def submit(self, task: Task) -> None:
        """Takes a task."""
        self._waiting.append(task)

    def ended(self) -> Iterator[Ended]:
        """Each task as it ends."""
        while self._waiting or self._running:
            while self._waiting and (self._jobs is None or len(self._running) < self._jobs):
                task = self._waiting.popleft()
                self._running[self._run.remote(task.given(self._flags), self._here, self._sign)] = task
            (first,), _ = ray.wait(list(self._running), num_returns=1)
            yield _ended(first, self._running.pop(first))

    def stop(self) -> None:
        """Ends what still runs, with the workers that run it, and leaves the cluster."""
        for running in self._running:
            ray.cancel(running, force=True)
        self._sign.unlink(missing_ok=True)
        ray.shutdown()


def _join(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Nobody is told that it is used.
    ours = signal.getsignal(signal.SIGTERM)
    try:
        _require_listener(address or "")
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"--ray-address {address}: no Ray cluster can be joined there ({reason}); "
            "start one with: ray start --head"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, ours)  # Ray has one of its own, which would end us with another code.


def _require_listener(address: str) -> None:
    """Raises at once where nobody listens; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), LISTEN_S).close()


def _ended(running: ray.ObjectRef, task: Task) -> Ended:
    try:
        code: int = ray.get(running)
    except RayTaskError as error:
        return Ended(task.key, NO_CODE, str(error.cause))
    except RayError as error:
        return Ended(task.key, NO_CODE, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return Ended(task.key, code)
