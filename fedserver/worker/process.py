"""The server's hold on its worker process, so that torch stays out of the server itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from common.devices.names import CPU
from common.errors import ConfigError, FedError, RunError
from common.records.conformal import ConformalRecord
from common.records.rounds import Evaluation
from common.tensors.layout import Flat
from fedserver.config import RunConfig
from fedserver.worker.messages import CompareModels, Prepared, Reply, Request, Similarity, encoded, reply_of
from fedserver.worker.task_run import TorchlessWorker, needs_torch

T = TypeVar("T")

END_S = 5.0
"""A worker has this long to end by itself."""


class TorchWorker(Protocol):
    """What a federation asks of whoever has torch."""

    async def prepare(self, config: RunConfig) -> Prepared:
        """Builds the model and the shards."""

    async def evaluate(self, flat: Flat) -> Evaluation:
        """Accuracy and loss on the test set of the model whose tensors open this buffer."""

    async def conformal(self, flat: Flat, clients: Sequence[int]) -> ConformalRecord:
        """Coverage and size of conformal prediction sets of the same; `clients` are those with a shard."""

    async def cka(self, updates: Sequence[Path], num_images: int, estimator: str) -> Similarity:
        """Similarity of client models by layer, from the files of their updates."""

    async def rest(self) -> None:
        """Nothing will be asked for long."""


def worker_for(config: RunConfig, device: str = CPU) -> WorkerProcess | TorchlessWorker:
    """A process with torch, which evaluates on this device, unless the run needs none.

    It is to be started before gRPC has threads, which a later fork would have to stop.
    """
    if config.has_task and config.init is not None and not needs_torch(config):
        return TorchlessWorker()
    return WorkerProcess(device)


def start(connection: int) -> subprocess.Popen[bytes]:
    """A worker process that is asked through this file descriptor."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedserver.worker.lifeline", str(connection)],
        pass_fds=[connection],
        stdin=subprocess.DEVNULL,
    )


class _Living:
    """A worker process and the line to it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        self._process = start(theirs.fileno())
        theirs.close()

    def end(self) -> None:
        """Ends it, also if it has not yet come to hear a signal."""
        self._process.terminate()
        self.connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WorkerProcess:
    """Starts, asks and ends a worker. One question at a time. Who rests is started again when it is asked."""

    def __init__(self, device: str = CPU) -> None:
        self._living: _Living | None = _Living()
        self._begin = Request(device=device)
        """What a process is told first, once there are settings in it."""
        self._lock = threading.Lock()
        """Held by the thread that talks: a question that was cancelled is still answered before the next."""

    async def prepare(self, config: RunConfig) -> Prepared:
        """Builds the model and the shards."""
        self._begin = replace(self._begin, prepare=config)
        reply, x0 = await self._ask(replace(self._begin, x0=True))
        return Prepared.of(_given(reply.built), np.frombuffer(x0, np.uint8))

    async def evaluate(self, flat: Flat) -> Evaluation:
        """Accuracy and loss on the test set."""
        return _given((await self._ask(Request(evaluate=True), flat))[0].evaluation)

    async def conformal(self, flat: Flat, clients: Sequence[int]) -> ConformalRecord:
        """Conformal prediction sets on the test set."""
        return _given((await self._ask(Request(conformal=tuple(clients)), flat))[0].conformal)

    async def cka(self, updates: Sequence[Path], num_images: int, estimator: str) -> Similarity:
        """Similarity of client models."""
        question = CompareModels.of(updates, num_images, estimator)
        return _given((await self._ask(Request(cka=question)))[0].similarity)

    async def rest(self) -> None:
        """Ends the process, which takes hundreds of megabytes, until something is asked again."""
        await asyncio.to_thread(self._rest)

    def _rest(self) -> None:
        with self._lock:
            self._end()

    async def _ask(self, request: Request, flat: Flat | None = None) -> tuple[Reply, bytes]:
        return await asyncio.to_thread(self._converse, replace(request, flat=flat is not None), flat)

    def _converse(self, request: Request, flat: Flat | None) -> tuple[Reply, bytes]:
        with self._lock:
            try:
                if self._living is None:
                    self._living = _Living()
                    _exchange(self._living.connection, self._begin, None)
                return _exchange(self._living.connection, request, flat)
            except (EOFError, OSError) as error:
                raise RunError("the worker process ended unexpectedly; its last words are above") from error

    def close(self) -> None:
        """Ends the worker."""
        self._end()

    def _end(self) -> None:
        living, self._living = self._living, None
        if living is not None:
            living.end()


def _exchange(connection: Connection[Any, Any], request: Request, flat: Flat | None) -> tuple[Reply, bytes]:
    """A question and its answer, which may be an error."""
    connection.send_bytes(encoded(request))
    if flat is not None:
        connection.send_bytes(flat.data)
    reply = reply_of(connection.recv_bytes())
    if reply.failure is not None:
        raise (ConfigError if reply.failure.exit_code == 2 else FedError)(reply.failure.error)
    return reply, connection.recv_bytes() if request.x0 else b""


def _given(answer: T | None) -> T:
    assert answer is not None, "a reply answers what was asked, or says why not"
    return answer
