"""The parts of a federation's server, put together: for a process that listens, and for a simulation."""

from __future__ import annotations

from dataclasses import dataclass

from common.events import Emit, of_run
from common.wire.capture import CaptureWriter
from fedserver.config import RunConfig
from fedserver.members.leases import Leases
from fedserver.members.members import Members
from fedserver.rpc.service import Service
from fedserver.run.board import Board
from fedserver.run.rounds import Rounds
from fedserver.store.run_dir import RunDir
from fedserver.traffic.traffic import Traffic
from fedserver.worker.process import TorchWorker


@dataclass(frozen=True)
class Federation:
    """Who takes part, what is open, what passes, who answers calls and who drives the rounds."""

    members: Members
    board: Board
    traffic: Traffic
    service: Service
    rounds: Rounds


def assemble(
    config: RunConfig,
    run_id: str,
    run_dir: RunDir,
    worker: TorchWorker,
    emit: Emit,
    capture: CaptureWriter | None = None,
) -> Federation:
    """A federation that is ready to run; must be called on its event loop."""
    emit = of_run(emit, run_id)
    members = Members(config.num_clients, config.min_clients, Leases(config.lease), emit)
    board = Board()
    traffic = Traffic(lambda name: name in members.by_name, capture)
    service = Service(config, run_id, members, board, traffic, emit)
    rounds = Rounds(config, run_id, run_dir, worker, members, board, traffic, emit)
    return Federation(members, board, traffic, service, rounds)
