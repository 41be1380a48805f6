"""The server's hold on its worker process, so that torch stays out of the server itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

import numpy as np

from common.config import RunConfig
from common.errors import ConfigError, FedError, RunError
from common.tensors import Flat, Purpose, TensorSpec


@dataclass(frozen=True)
class Prepared:
    """What the worker built: the model's tensors with their first values, and the shards."""

    model: dict[str, Any]
    specs: tuple[TensorSpec, ...]
    classifier: tuple[str, ...]
    shards: list[list[int]]
    augment: bool
    x0: Flat


class Workbench:
    """Starts, asks and ends the worker. One question at a time."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedserver.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._lock = asyncio.Lock()

    async def prepare(self, config: RunConfig) -> Prepared:
        """Builds the model and the shards."""
        request = {"settings": config.as_dict()}
        async with self._lock:
            reply, x0 = await asyncio.to_thread(self._ask, request, None, True)
        return Prepared(
            model=reply["model"],
            specs=tuple(TensorSpec(n, d, tuple(s), Purpose(p)) for n, d, s, p in reply["tensors"]),
            classifier=tuple(reply["classifier"]),
            shards=reply["shards"],
            augment=reply["augment"],
            x0=np.frombuffer(x0, np.uint8),
        )

    async def evaluate(self, flat: Flat) -> dict[str, float]:
        """Accuracy and loss on the test set of the model whose tensors open this buffer."""
        async with self._lock:
            reply, _ = await asyncio.to_thread(self._ask, {}, flat, False)
        return reply

    def _ask(
        self, request: dict[str, Any], flat: Flat | None, wants_bytes: bool
    ) -> tuple[dict[str, Any], bytes]:
        try:
            self._connection.send_bytes(json.dumps(request).encode())
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
