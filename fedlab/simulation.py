"""A federation in one process, without sockets: the same code on both sides, the same results and counts.

The server's event loop runs in a thread; the clients take their turns one after the other in the caller's.
Tensors change hands in memory (`fedlab.direct`); their frames are counted and not made, so byte counts and
final weights equal those of a run over gRPC.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.data.names import DATASETS
from common.errors import ConfigError
from common.events import Emit, to_all, unheard
from common.models.build import build_model
from common.models.names import BUILT_IN
from common.models.spec import ModelSpec
from common.records.conformal import ConformalRecord
from common.records.rounds import Evaluation
from common.tensors.layout import Flat, Layout
from common.tensors.torch_views import bind
from fedclient.config import ClientConfig
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.seat import Seat
from fedclient.run.daemon import Daemon
from fedclient.run.prepare import Build
from fedclient.site import Site
from fedclient.store.memory_state import MemoryState
from fedlab.direct.connection import HandedConnection
from fedlab.direct.loop import Loop
from fedlab.direct.rooms import Rooms
from fedlab.direct.service import HandedService
from fedlab.direct.transport import HandedTransport
from fedserver.config import RunConfig
from fedserver.federation import Federation, assemble
from fedserver.live.event_log import EventLog
from fedserver.live.live_file import LiveFile
from fedserver.live.snapshot import Frame, LiveNews, Snapshots
from fedserver.results.summary import tell_of_the_end
from fedserver.store.run_dir import RunDir
from fedserver.worker.__main__ import Worker
from fedserver.worker.messages import CompareModels, Prepared, Similarity


def simulate(config: RunConfig, run_path: Path, emit: Emit) -> None:
    """Runs a whole federation and leaves a run directory behind."""
    for name in ("deadline", "lease", "gather", "min_clients"):
        if getattr(config, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"a simulation has no {flag}: its clients take turns, and none is late")
    if config.has_task:
        raise ConfigError("a simulation has all data itself; give --dataset instead of a task")
    torch.set_num_threads(1)
    run_id, news = secrets.token_hex(6), LiveNews()
    with RunDir(run_path, resume=False) as run_dir, EventLog(run_path, emit) as log, Loop() as loop:
        emit = to_all(emit, log, news)
        federation = loop.call(_assembled(config, run_id, run_dir, emit))
        with loop.inside(LiveFile(run_path, Snapshots(Frame(run_id, config), federation, news))):
            _run(config, federation, loop, run_path)
        run_dir.write_traffic(federation.traffic.whole())
        tell_of_the_end(federation.board, federation.members, run_path, emit)


def _run(config: RunConfig, federation: Federation, loop: Loop, run_path: Path) -> None:
    running = loop.start(federation.rounds.run())
    with (
        closing(Rooms()) as rooms,
        tempfile.TemporaryDirectory(dir=run_path, prefix=".clients-") as scratch,
    ):
        connections = _connected(federation, loop, rooms, config.num_clients)
        seats = _join_all(connections, running)
        _take_turns(config, federation, connections, seats, rooms, Path(scratch))
    running.result()


def _take_turns(
    config: RunConfig,
    federation: Federation,
    connections: list[Connection],
    seats: list[Seat],
    rooms: Rooms,
    scratch: Path,
) -> None:
    """All rounds and the end. Clients are made when they are drawn; names are in the order of indices."""
    # A model is bound to its client's tensors in every turn, and a built-in one holds nothing else.
    build: Build = _OneModel() if config.model in BUILT_IN else build_model
    frozen: dict[str, Flat] = {}
    some = config.clients_per_round not in (None, config.num_clients)
    clients: dict[int, Daemon] = {}
    for r in range(1, config.rounds + 1):
        drawn = federation.members.drawn(config.seed, r, config.clients_per_round)
        rooms.open(len(drawn))
        for i in drawn:
            if i not in clients:
                state = MemoryState(scratch if some else None, frozen)
                clients[i] = _client(f"client-{i}", config, state, build)
            clients[i].take_only_turn(connections[i], seats[i])
    for i, (connection, seat) in enumerate(zip(connections, seats, strict=True)):
        if i in clients:
            clients[i].take_only_turn(connection, seat)  # Hears of the end.
        else:
            connection.pull(seat.run_id, 0, [], Layout([]), Download())


async def _assembled(config: RunConfig, run_id: str, run_dir: RunDir, emit: Emit) -> Federation:
    worker = _InProcessWorker()
    return assemble(config, run_id, run_dir, worker, emit, serve=HandedService, in_process=True)


def _connected(federation: Federation, loop: Loop, rooms: Rooms, num_clients: int) -> list[Connection]:
    service = federation.service
    assert isinstance(service, HandedService), "it was asked for"
    return [
        HandedConnection(HandedTransport(loop, service), f"client-{i}", rooms) for i in range(num_clients)
    ]


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

    async def conformal(self, flat: Flat, clients: Sequence[int]) -> ConformalRecord:
        """Conformal prediction sets on the test set."""
        return await asyncio.to_thread(self._worker.conformal, flat, clients)

    async def cka(self, updates: Sequence[Path], num_images: int, estimator: str) -> Similarity:
        """Similarity of client models."""
        question = CompareModels.of(updates, num_images, estimator)
        return await asyncio.to_thread(self._worker.cka, question)

    async def rest(self) -> None:
        """There is no process to end."""
