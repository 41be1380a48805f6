"""The parts of a federation's server, put together: for a process that listens, and for a simulation."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from common.events import Emit, of_run
from common.wire.capture import CaptureWriter
from fedserver.config import RunConfig
from fedserver.events.sparing import sparing
from fedserver.members.leases import Leases
from fedserver.members.members import Members
from fedserver.members.presence import Presence
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


def continued(config: RunConfig, run_dir: RunDir) -> tuple[RunConfig, str]:
    """The settings and the id of the run that goes on in this directory, or of a new one."""
    previous = run_dir.previous
    if previous is None:
        return config, secrets.token_hex(6)
    if config.gather is not None:
        config = replace(config, num_clients=previous.num_clients)
    run_dir.require_same_settings(config)
    return config, previous.run_id


def assemble(
    config: RunConfig,
    run_id: str,
    run_dir: RunDir,
    worker: TorchWorker,
    emit: Emit,
    capture: CaptureWriter | None = None,
    *,
    serve: type[Service] = Service,
    in_process: bool = False,
    canary: bool = False,
) -> Federation:
    """A federation that is ready to run; must be called on its event loop.

    `serve` answers calls. `in_process`: clients live here and take turns, so that most are silent most of
    the time. `canary`: they rehearse before round 1.
    """
    emit = sparing(of_run(emit, run_id))
    working = config.clients_per_round or config.num_clients
    presence = Presence(Leases(config.lease), working, emit, expects_signs=not in_process)
    members = Members(config.num_clients, config.min_clients, presence, emit)
    board = Board()
    traffic = Traffic(lambda name: name in members.by_name, capture)
    service = serve(config, run_id, members, board, traffic, emit)
    rounds = Rounds(
        config, run_id, run_dir, worker, members, board, traffic, emit, canary=canary, in_process=in_process
    )
    return Federation(members, board, traffic, service, rounds)
