"""The server's hold on its worker process, so that torch stays out of the server itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from common.errors import ConfigError, FedError, RunError
from common.records.conformal import PredictionSets
from common.records.rounds import Evaluation
from common.tensors.layout import Flat
from fedserver.config import RunConfig
from fedserver.worker.messages import CompareModels, Prepared, Reply, Request, Similarity, encoded, reply_of
from fedserver.worker.task_run import TorchlessWorker, needs_torch

T = TypeVar("T")


class TorchWorker(Protocol):
    """What a federation asks of whoever has torch."""

    async def prepare(self, config: RunConfig) -> Prepared:
        """Builds the model and the shards."""

    async def evaluate(self, flat: Flat) -> Evaluation:
        """Accuracy and loss on the test set of the model whose tensors open this buffer."""

    async def conformal(self, flat: Flat, seed: int) -> tuple[PredictionSets, ...]:
        """Coverage and size of conformal prediction sets of the same."""

    async def cka(self, updates: Sequence[Path], num_images: int) -> Similarity:
        """Similarity of client models by layer, from the files of their updates."""


def worker_for(config: RunConfig) -> WorkerProcess | TorchlessWorker:
    """A process with torch, unless the run needs none."""
    if config.has_task and config.init is not None and not needs_torch(config):
        return TorchlessWorker()
    return WorkerProcess()


def start(connection: int) -> subprocess.Popen[bytes]:
    """A worker process that is asked through this file descriptor."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedserver.worker.lifeline", str(connection)],
        pass_fds=[connection],
        stdin=subprocess.DEVNULL,
    )


class WorkerProcess:
    """Starts, asks and ends a worker. One question at a time."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._process = start(theirs.fileno())
        theirs.close()
        self._lock = threading.Lock()
        """Held by the thread that talks: a question that was cancelled is still answered before the next."""

    async def prepare(self, config: RunConfig) -> Prepared:
        """Builds the model and the shards."""
        reply, x0 = await self._ask(Request(prepare=config))
        return Prepared.of(_given(reply.built), np.frombuffer(x0, np.uint8))

    async def evaluate(self, flat: Flat) -> Evaluation:
        """Accuracy and loss on the test set."""
        return _given((await self._ask(Request(evaluate=True), flat))[0].evaluation)

    async def conformal(self, flat: Flat, seed: int) -> tuple[PredictionSets, ...]:
        """Conformal prediction sets on the test set."""
        return _given((await self._ask(Request(conformal=seed), flat))[0].sets)

    async def cka(self, updates: Sequence[Path], num_images: int) -> Similarity:
        """Similarity of client models."""
        question = CompareModels(
            updates=tuple(str(path.absolute()) for path in updates), num_images=num_images
        )
        return _given((await self._ask(Request(cka=question)))[0].similarity)

    async def _ask(self, request: Request, flat: Flat | None = None) -> tuple[Reply, bytes]:
        return await asyncio.to_thread(self._converse, replace(request, flat=flat is not None), flat)

    def _converse(self, request: Request, flat: Flat | None) -> tuple[Reply, bytes]:
        with self._lock:
            try:
                self._connection.send_bytes(encoded(request))
                if flat is not None:
                    self._connection.send_bytes(flat.data)
                reply = reply_of(self._connection.recv_bytes())
                if reply.failure is not None:
                    raise (ConfigError if reply.failure.exit_code == 2 else FedError)(reply.failure.error)
                return reply, self._connection.recv_bytes() if reply.built is not None else b""
            except (EOFError, OSError) as error:
                raise RunError("the worker process ended unexpectedly; its last words are above") from error

    def close(self) -> None:
        """Ends the worker."""
        self._process.terminate()
        self._process.wait()
        self._connection.close()


def _given(answer: T | None) -> T:
    assert answer is not None, "a reply answers what was asked, or says why not"
    return answer
