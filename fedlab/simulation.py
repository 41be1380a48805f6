"""A federation on one machine, without sockets: the same code on both sides, the same results and counts.

The server's event loop runs in a thread; the clients take their turns one after the other in the caller's or,
with `jobs`, several at a time in processes of their own (`fedlab.crew`). Tensors change hands in memory
(`fedlab.direct`); their frames are counted and not made, so byte counts and final weights equal those of a
run over gRPC. A simulation that was killed goes on after its last closed round.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import torch

from common.devices.choice import Placing
from common.devices.events import Computing
from common.devices.place import PROCESSOR
from common.errors import ConfigError, UnavailableError
from common.events import Emit, to_all
from common.tensors.layout import Layout
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.seat import Seat
from fedclient.run import phases
from fedlab.crew.crew import Crew, CrewTurns
from fedlab.crew.hands import Hands
from fedlab.crew.memory import SharedMemory
from fedlab.direct.carried import Carried
from fedlab.direct.clients import Clients
from fedlab.direct.connection import HandedConnection
from fedlab.direct.kept_state import forget_all
from fedlab.direct.loop import Loop
from fedlab.direct.rooms import Rooms
from fedlab.direct.service import HandedService
from fedlab.direct.transport import HandedTransport
from fedlab.direct.worker_here import WorkerHere
from fedserver.config import RunConfig
from fedserver.federation import Federation, assemble, continued
from fedserver.live.event_log import EventLog
from fedserver.live.live_file import LiveFile
from fedserver.live.snapshot import Constants, LiveNews, Snapshots
from fedserver.results.summary import tell_of_the_end
from fedserver.store.run_dir import RunDir


def simulate(
    config: RunConfig,
    run_path: Path,
    emit: Emit,
    place: Placing = lambda k: PROCESSOR,
    *,
    jobs: int = 1,
    resume: bool = True,
) -> None:
    """Runs a whole federation, or what is left of it, and leaves a run directory behind."""
    _require_possible(config, jobs)
    torch.set_num_threads(1)
    news = LiveNews()
    with RunDir(run_path, resume=resume) as run_dir, ExitStack() as stack:
        config, run_id = continued(config, run_dir)
        if run_dir.previous is None:
            forget_all(run_path)
        worker = WorkerHere(config)
        # Before there are threads, as a fork copies one only, and before this process looks for a GPU.
        troupe = _Troupe(config, run_path, worker, jobs, place, stack)
        emit = to_all(emit, stack.enter_context(EventLog(run_path, emit)), news)
        here = place(0)
        worker.move(here)
        if not here.is_plain:
            emit(Computing(run=run_id, device=str(here.device), autocast=here.autocast))
        loop = stack.enter_context(Loop())
        federation = loop.call(_assembled(config, run_id, run_dir, worker, emit))
        with loop.inside(LiveFile(run_path, Snapshots(Constants(run_id, config), federation, news))):
            _run(config, federation, loop, troupe, emit)
        forget_all(run_path)
        run_dir.write_traffic(federation.traffic.whole())
        tell_of_the_end(federation.board, federation.members, run_path, emit)


def _require_possible(config: RunConfig, jobs: int) -> None:
    for name in ("deadline", "lease", "gather", "min_clients"):
        if getattr(config, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"a simulation has no {flag}: its clients take turns, and none is late")
    if config.has_task:
        raise ConfigError("a simulation has all data itself; give --dataset instead of a task")
    if jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}")


class _Turns(Protocol):
    """Has the turns of a round's clients taken."""

    def take(self, drawn: list[int], carried: dict[int, Carried], running: Future[None]) -> None:
        """Until all of them have answered; `carried` is what each takes along."""

    def close(self) -> None:
        """There are no further rounds."""


class _Troupe:
    """Who takes turns: this process, or processes that it has forked."""

    def __init__(
        self,
        config: RunConfig,
        run_path: Path,
        worker: WorkerHere,
        jobs: int,
        place: Placing,
        stack: ExitStack,
    ) -> None:
        """Forks, if there is to be more than one at a time."""
        in_a_round = min(config.clients_per_round or config.num_clients, config.num_clients)
        jobs = min(jobs, in_a_round)
        self._clients = Clients(config, run_path, worker.variates, worker.frozen, jobs, place)
        self._crew: Crew | None = None
        if jobs > 1:
            self._memory = SharedMemory.of(*worker.bytes_in_memory, worker.num_senders, jobs)
            self._hands = Hands(worker.work, jobs, move=in_a_round < config.num_clients)
            self._crew = stack.enter_context(Crew(jobs, self._clients, self._memory))

    def turns(
        self,
        federation: Federation,
        loop: Loop,
        rooms: Rooms,
        connections: list[Connection],
        seats: list[Seat],
        emit: Emit,
    ) -> _Turns:
        """Ready for the first round."""
        if self._crew is None:
            return _OneByOne(self._clients, rooms, connections, seats)
        service = _service(federation)
        return CrewTurns(self._crew, self._memory, self._hands, service, federation.board, loop, emit)


class _OneByOne:
    """Takes all turns here."""

    def __init__(
        self, clients: Clients, rooms: Rooms, connections: list[Connection], seats: list[Seat]
    ) -> None:
        self._clients = clients
        self._rooms = rooms
        self._connections = connections
        self._seats = seats

    def take(self, drawn: list[int], carried: dict[int, Carried], running: Future[None]) -> None:
        """In the order of indices."""
        self._rooms.open(len(drawn))
        for i in drawn:
            before = carried.get(i, Carried())
            carried[i] = self._clients.take_turn(self._connections[i], self._seats[i], before)

    def close(self) -> None:
        """There are no further rounds."""


def _run(config: RunConfig, federation: Federation, loop: Loop, troupe: _Troupe, emit: Emit) -> None:
    running = loop.start(federation.rounds.run())
    running.add_done_callback(lambda ended: _give_up(loop, ended))
    try:
        with closing(Rooms()) as rooms:
            connections = _connected(federation, loop, rooms, config.num_clients)
            seats = _join_all(connections, running)
            carried = _left_by_an_earlier_process(federation)
            with closing(troupe.turns(federation, loop, rooms, connections, seats, emit)) as turns:
                _take_turns(config, federation, turns, rooms, carried, running)
            for i, (connection, seat) in enumerate(zip(connections, seats, strict=True)):
                _hear_of_the_end(connection, seat, carried.get(i, Carried()))
    except UnavailableError:
        if not running.done():
            raise
    running.result()


def _give_up(loop: Loop, ended: Future[None]) -> None:
    """Of a run that has failed clients may wait for ever for an answer."""
    if not ended.cancelled() and ended.exception() is not None:
        loop.answer_nobody()


def _left_by_an_earlier_process(federation: Federation) -> dict[int, Carried]:
    """What clients of a run that goes on remember: the state that counts, and not the x of the last round."""
    counted = federation.board.require_run().variates.counted
    return {i: Carried(held=(r,), has_frozen=True) for i, r in counted.items()}


def _take_turns(
    config: RunConfig,
    federation: Federation,
    turns: _Turns,
    rooms: Rooms,
    carried: dict[int, Carried],
    running: Future[None],
) -> None:
    """All rounds that are left."""
    before = -1 if config.warm_variates else 0
    done = max(federation.board.require_run().checkpoints.rounds(), default=before)
    for r in range(done + 1, config.rounds + 1):
        if not running.done():
            # Before round 1 all are asked for the variates that they start with.
            drawn = federation.members.drawn(config.seed, r, config.clients_per_round if r else None)
            turns.take(drawn, carried, running)
        if not r:
            rooms.clear()


def _hear_of_the_end(connection: Connection, seat: Seat, carried: Carried) -> None:
    held = phases.held_rounds(carried.memory, list(carried.held))
    connection.pull(seat.run_id, carried.last_round, held, Layout([]), Download())


async def _assembled(
    config: RunConfig, run_id: str, run_dir: RunDir, worker: WorkerHere, emit: Emit
) -> Federation:
    return assemble(config, run_id, run_dir, worker, emit, serve=HandedService, in_process=True)


def _service(federation: Federation) -> HandedService:
    service = federation.service
    assert isinstance(service, HandedService), "it was asked for"
    return service


def _connected(federation: Federation, loop: Loop, rooms: Rooms, num_clients: int) -> list[Connection]:
    service = _service(federation)
    return [
        HandedConnection(HandedTransport(loop, service), f"client-{i}", rooms) for i in range(num_clients)
    ]


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
