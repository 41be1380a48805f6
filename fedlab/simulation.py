"""A federation in one process, without sockets: the same code on both sides, the same messages and results.

The server's event loop runs in a thread; the clients take their turns one after the other in the caller's.
Messages are encoded, counted, checked and decoded as on the wire, so byte counts and final weights equal
those of a run over gRPC.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from common.data.names import DATASETS
from common.errors import ConfigError
from common.events import Emit, unheard
from common.models.build import build_model
from common.models.names import BUILT_IN
from common.models.spec import ModelSpec
from common.records.conformal import PredictionSets
from common.records.rounds import Evaluation
from common.tensors.layout import Flat, Layout
from common.tensors.torch_views import bind
from common.wire.calls import Call
from common.wire.chunks import CHUNK_BYTES
from fedclient.config import ClientConfig
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.seat import Seat
from fedclient.run.daemon import Daemon
from fedclient.run.prepare import Build
from fedclient.site import Site
from fedclient.store.memory_state import MemoryState
from fedserver.access.authenticate import Caller
from fedserver.config import RunConfig
from fedserver.federation import Federation, assemble
from fedserver.results.summary import tell_of_the_end
from fedserver.rpc.service import Service
from fedserver.store.run_dir import RunDir
from fedserver.worker.__main__ import Worker
from fedserver.worker.messages import Prepared, Similarity

T = TypeVar("T")
_CALLER = Caller("")


def simulate(config: RunConfig, run_path: Path, emit: Emit) -> None:
    """Runs a whole federation and leaves a run directory behind."""
    for name in ("deadline", "lease", "gather", "min_clients"):
        if getattr(config, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"a simulation has no {flag}: its clients take turns, and none is late")
    if config.has_task:
        raise ConfigError("a simulation has all data itself; give --dataset instead of a task")
    torch.set_num_threads(1)
    with RunDir(run_path, resume=False) as run_dir, _Loop() as loop:
        federation = loop.call(_assembled(config, run_dir, emit))
        running = loop.start(federation.rounds.run())
        connections = [
            Connection(_Transport(loop, federation.service), f"client-{i}") for i in range(config.num_clients)
        ]
        seats = _join_all(connections, running)
        with tempfile.TemporaryDirectory(dir=run_path, prefix=".clients-") as scratch:
            _take_turns(config, federation, connections, seats, Path(scratch))
        running.result()
        run_dir.write_traffic(federation.traffic.whole())
    tell_of_the_end(federation.board, federation.members, run_path, emit)


def _take_turns(
    config: RunConfig, federation: Federation, connections: list[Connection], seats: list[Seat], scratch: Path
) -> None:
    """All rounds and the end. Clients are made when they are drawn; names are in the order of indices."""
    # A model is bound to its client's tensors in every turn, and a built-in one holds nothing else.
    build: Build = _OneModel() if config.model in BUILT_IN else build_model
    frozen: dict[str, Flat] = {}
    some = config.clients_per_round not in (None, config.num_clients)
    clients: dict[int, Daemon] = {}
    for r in range(1, config.rounds + 1):
        for i in federation.members.drawn(config.seed, r, config.clients_per_round):
            if i not in clients:
                state = MemoryState(scratch if some else None, frozen)
                clients[i] = _client(f"client-{i}", config, state, build)
            clients[i].take_only_turn(connections[i], seats[i])
    for i, (connection, seat) in enumerate(zip(connections, seats, strict=True)):
        if i in clients:
            clients[i].take_only_turn(connection, seat)  # Hears of the end.
        else:
            connection.pull(seat.run_id, 0, [], Layout([]), Download())


async def _assembled(config: RunConfig, run_dir: RunDir, emit: Emit) -> Federation:
    return assemble(config, secrets.token_hex(6), run_dir, _InProcessWorker(), emit, takes_turns=True)


def _client(name: str, run: RunConfig, state: MemoryState, build: Build) -> Daemon:
    """A client of whoever started the simulation, who has named model and data set and sets no limits."""
    site = Site(
        plugins=frozenset({run.model, run.dataset} - {*BUILT_IN, *DATASETS}),
        max_parameters=sys.maxsize,
        max_steps=sys.maxsize,
    )
    config = ClientConfig(server="", name=name, data_dir=run.data_dir, site=site)
    return Daemon(config, state, unheard, build=build)


class _OneModel:
    """Builds a model once, and gives every client the same one, with the values that it had at first."""

    def __init__(self) -> None:
        self._model: nn.Module | None = None
        self._first: dict[str, Tensor] = {}

    def __call__(self, spec: ModelSpec, seed: int) -> nn.Module:
        """All ask for the same."""
        if self._model is None:
            self._model = build_model(spec, seed)
            self._first = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        bind(self._model, self._first)
        return self._model


def _join_all(connections: list[Connection], running: Future[None]) -> list[Seat]:
    """All at once, because a seat is given only when all are taken."""
    pool = ThreadPoolExecutor(len(connections))
    joining = [pool.submit(connection.join, None) for connection in connections]
    pool.shutdown(wait=False)
    left = len(joining)
    futures: list[Future[Any]] = [running, *joining]
    for ended in as_completed(futures):
        ended.result()  # Raises what has ended the run instead.
        left -= ended is not running
        if not left:
            break
    return [future.result() for future in joining]


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> _Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Whoever still waits hears of the end before the loop stops, or would wait for ever.
        self.call(self._cancel_all())
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Lets a coroutine run."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine."""
        return self.start(work).result()


class _Transport:
    """Calls the service directly."""

    def __init__(self, loop: _Loop, service: Service) -> None:
        self._loop = loop
        self._service = service

    @property
    def chunk_bytes(self) -> int:
        """As over gRPC."""
        return CHUNK_BYTES

    def ask(self, call: Call, request: bytes) -> bytes:
        """The reply, once the server's loop has it."""
        reply: bytes = self._loop.call(getattr(self._service, call.method)(request, _CALLER))
        return reply

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """All replies, once the last one is there."""

        async def received() -> list[bytes]:
            return [frame async for frame in getattr(self._service, call.method)(request, _CALLER)]

        return iter(self._loop.call(received()))

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """The reply, once the server's loop has read all frames."""

        async def sent() -> AsyncIterator[bytes]:
            for frame in frames:
                yield frame

        reply: bytes = self._loop.call(getattr(self._service, call.method)(sent(), _CALLER))
        return reply

    def close(self) -> None:
        """Nothing to hang up."""


class _InProcessWorker:
    """A worker in this process."""

    def __init__(self) -> None:
        self._worker = Worker()

    async def prepare(self, config: RunConfig) -> Prepared:
        """Builds the model and the shards."""
        return await asyncio.to_thread(self._worker.prepare, config)

    async def evaluate(self, flat: Flat) -> Evaluation:
        """Accuracy and loss on the test set."""
        return await asyncio.to_thread(self._worker.evaluate, flat)

    async def conformal(self, flat: Flat, seed: int) -> tuple[PredictionSets, ...]:
        """Conformal prediction sets on the test set."""
        return await asyncio.to_thread(self._worker.conformal, flat, seed)

    async def cka(self, updates: Sequence[Path], num_images: int) -> Similarity:
        """Similarity of client models."""
        return await asyncio.to_thread(self._worker.cka, list(map(str, updates)), num_images)
