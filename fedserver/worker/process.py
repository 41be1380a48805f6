"""The server's hold on its worker process, so that torch stays out of the server itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from common.errors import ConfigError, FedError, RunError
from common.tensors.layout import Flat, Purpose, TensorSpec
from fedserver.config import RunConfig


@dataclass(frozen=True)
class Prepared:
    """What the worker built: the model's tensors with their first values, and the shards."""

    model: dict[str, Any]
    specs: tuple[TensorSpec, ...]
    classifier: tuple[str, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shards: list[list[int]]
    histograms: list[list[int]]
    """Examples of each class in each shard."""
    augment: bool
    x0: Flat

    @classmethod
    def from_reply(cls, reply: dict[str, Any], x0: Flat) -> Prepared:
        """What the worker answers, in the server's terms."""
        return cls(
            model=reply["model"],
            specs=tuple(TensorSpec(n, d, tuple(s), Purpose(p)) for n, d, s, p in reply["tensors"]),
            classifier=tuple(reply["classifier"]),
            class_names=tuple(reply["class_names"]),
            mean=tuple(reply["mean"]),
            std=tuple(reply["std"]),
            shards=reply["shards"],
            histograms=reply["histograms"],
            augment=reply["augment"],
            x0=x0,
        )


class TorchWorker(Protocol):
    """What a federation asks of whoever has torch."""

    async def prepare(self, config: RunConfig) -> Prepared:
        """Builds the model and the shards."""

    async def evaluate(self, flat: Flat) -> dict[str, Any]:
        """Accuracy and loss on the test set of the model whose tensors open this buffer."""

    async def conformal(self, flat: Flat, seed: int) -> list[dict[str, float]]:
        """Coverage and size of conformal prediction sets of the same."""

    async def cka(self, updates: list[Path], num_images: int) -> dict[str, float]:
        """Similarity of client models by layer, from the files of their updates."""


def start(connection: int) -> subprocess.Popen[bytes]:
    """A worker process that is asked through this file descriptor."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedserver.worker", str(connection)],
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
        request = {"ask": "prepare", "settings": config.as_dict()}
        reply, x0 = await self._ask(request, wants_bytes=True)
        return Prepared.from_reply(reply, np.frombuffer(x0, np.uint8))

    async def evaluate(self, flat: Flat) -> dict[str, Any]:
        """Accuracy and loss on the test set."""
        return (await self._ask({"ask": "evaluate"}, flat))[0]

    async def conformal(self, flat: Flat, seed: int) -> list[dict[str, float]]:
        """Conformal prediction sets on the test set."""
        reply, _ = await self._ask({"ask": "conformal", "seed": seed}, flat)
        sets: list[dict[str, float]] = reply["sets"]
        return sets

    async def cka(self, updates: list[Path], num_images: int) -> dict[str, float]:
        """Similarity of client models."""
        paths = [str(path.absolute()) for path in updates]
        return (await self._ask({"ask": "cka", "updates": paths, "num_images": num_images}))[0]

    async def _ask(
        self, request: dict[str, Any], flat: Flat | None = None, *, wants_bytes: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        return await asyncio.to_thread(self._converse, request, flat, wants_bytes)

    def _converse(
        self, request: dict[str, Any], flat: Flat | None, wants_bytes: bool
    ) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            try:
                self._connection.send_bytes(json.dumps(request | {"flat": flat is not None}).encode())
                if flat is not None:
                    self._connection.send_bytes(flat.data)
                reply = json.loads(self._connection.recv_bytes())
                if "error" in reply:
                    raise (ConfigError if reply["exit_code"] == 2 else FedError)(reply["error"])
                return reply, self._connection.recv_bytes() if wants_bytes else b""
            except (EOFError, OSError) as error:
                raise RunError("the worker process ended unexpectedly; its last words are above") from error

    def close(self) -> None:
        """Ends the worker."""
        self._process.terminate()
        self._process.wait()
        self._connection.close()
