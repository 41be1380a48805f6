"""The client's life: join, then take turns until the run ends, through lost connections."""

from __future__ import annotations

import itertools
import math
import time
from contextlib import nullcontext
from datetime import UTC, datetime

import torch

from common.access import diagnosis
from common.access.expiry import expiry
from common.errors import AccessError, FedError, NoConnectionError, UnavailableError, UnknownClientError
from common.events import Emit, of_client, of_run
from common.models.build import build_model
from common.processes.background import Cancelled
from common.wire.capture import CaptureWriter
from fedclient.config import ClientConfig
from fedclient.events import ConnectionLost, Joined, Joining, RunFinished, Stopped
from fedclient.policy.gate import Gate
from fedclient.policy.guarded import GuardedConnection
from fedclient.rpc.connection import Connection
from fedclient.rpc.heartbeat import Heartbeat
from fedclient.rpc.round_stream import RunEnded
from fedclient.rpc.seat import Seat
from fedclient.run.backoff import Backoff
from fedclient.run.leaving import leaving_on_failure
from fedclient.run.phases import Memory
from fedclient.run.prepare import Build, left_over, prepare
from fedclient.run.turn import Participant
from fedclient.store.run_state import ClientState
from fedclient.training.core_gate import sharing_cores
from fedclient.transport.base import Transport
from fedclient.transport.captured import CapturedTransport
from fedclient.transport.grpc_transport import WINDOW_BYTES, GrpcTransport
from fedclient.transport.paced import PACED_WINDOW_BYTES, Pace, PacedTransport


def _word(stop: BaseException) -> str:
    """What has ended a client."""
    if isinstance(stop, Cancelled):
        return "its program"
    return "SIGINT" if isinstance(stop, KeyboardInterrupt) else "SIGTERM"


class Daemon:
    """One client process."""

    def __init__(
        self,
        config: ClientConfig,
        state: ClientState,
        emit: Emit,
        capture: CaptureWriter | None = None,
        build: Build = build_model,
        gate: Gate | None = None,
    ) -> None:
        """`build` makes the model; clients that take turns in one process can do with one.

        `gate` is for a client whose site has a policy.
        """
        self._config = config
        self._gate = gate
        self._build = build
        self._state = state
        self._emit = of_client(emit, config.name)
        self._capture = capture
        self._calls = itertools.count()
        self._up = Pace(config.uplink) if config.uplink is not None else None
        self._down = Pace(config.downlink) if config.downlink is not None else None
        self._participant: Participant | None = None
        self._heartbeat: Heartbeat | None = None
        self._has_said_joining = False

    def run(self) -> RunEnded:
        """Takes part in the run until it ends; connects again as often as needed."""
        try:
            with sharing_cores() if self._config.threads is None else nullcontext():
                return self._run()
        except Exception:
            raise
        except BaseException as stop:
            self._emit(
                Stopped(
                    signal=_word(stop),
                    reason="joining" if self._participant is None else self._participant.doing,
                    server_knows=self._heartbeat is not None and self._heartbeat.heard_good_bye,
                )
            )
            raise

    def _run(self) -> RunEnded:
        torch.set_num_threads(self._config.threads or 1)
        self._warn_of_expiry()
        backoff, told = Backoff(), ""
        while True:
            try:
                with self._connection() as connection:
                    seat = self._take_seat(connection)
                    self._heartbeat = Heartbeat(connection, seat)
                    with self._heartbeat:
                        self._get_ready(connection, seat)
                        while (ended := self.take_turn(connection)) is None:
                            backoff.heard()
                        return self._finished(seat, ended)
            except (UnavailableError, UnknownClientError) as failure:
                error = self._understood(failure)
                silent_s = backoff.failed(self._participant and self._participant.reached)
                if silent_s is None or (error is not failure and str(error) != told):
                    told = str(error)
                    self._emit(ConnectionLost(reason=told, give_up_s=self._config.give_up_s))
                elif silent_s > self._config.give_up_s:
                    raise UnavailableError(f"{error}; gave up after {silent_s:.0f} s") from error
            time.sleep(backoff.next_wait())

    def _warn_of_expiry(self) -> None:
        access = self._config.access
        if access.certs is not None and access.read().certificate is not None:
            soon = expiry(access.files()[0], datetime.now(UTC))
            if soon is not None:
                self._emit(soon)

    def _understood(self, failure: FedError) -> FedError:
        """Why no connection can come about, in plain words; a client that has had none ends with it."""
        if not isinstance(failure, NoConnectionError):
            return failure
        fault = diagnosis.fault(self._config.server, self._config.access)
        if fault is not None and self._participant is None:
            raise AccessError(fault) from failure
        return failure if fault is None else UnavailableError(fault)

    def _finished(self, seat: Seat, ended: RunEnded) -> RunEnded:
        if not ended.reason:
            self._emit(
                RunFinished(
                    run=seat.run_id,
                    round=ended.round,
                    accuracy=ended.accuracy if math.isfinite(ended.accuracy) else None,
                    best=ended.best,
                    took_part=ended.took_part,
                )
            )
        return ended

    def _connection(self) -> Connection:
        name, data_dir = self._config.name, self._config.data_dir
        if self._gate is not None:
            return GuardedConnection(self._transport(), name, data_dir, self._gate, self._emit)
        return Connection(self._transport(), name, data_dir)

    def _transport(self) -> Transport:
        window = WINDOW_BYTES if self._down is None else PACED_WINDOW_BYTES
        transport: Transport = GrpcTransport(self._config.server, self._config.access.read(), window)
        if self._up is not None or self._down is not None:
            transport = PacedTransport(transport, self._up, self._down)
        if self._capture is not None:
            transport = CapturedTransport(transport, self._capture, self._calls)
        return transport

    def _take_seat(self, connection: Connection) -> Seat:
        own = self._config.own_data
        if not self._has_said_joining:
            self._has_said_joining = True
            self._emit(Joining(server=self._config.server))
        test = self._config.test_data
        return connection.join((own.examples, own.class_names) if own else None, test.examples if test else 0)

    def _get_ready(self, connection: Connection, seat: Seat) -> None:
        if self._participant is None or self._participant.run_id != seat.run_id:
            self._participant = self._participate(connection, seat)

    def _participate(self, connection: Connection, seat: Seat) -> Participant:
        emit = of_run(self._emit, seat.run_id)
        with leaving_on_failure(connection, seat, emit):
            equipment = prepare(self._config, seat, self._state, emit, self._build)
            participant = Participant(equipment, left_over(equipment, emit), emit)
        emit(
            Joined(
                index=seat.index,
                num_clients=seat.num_clients,
                examples=equipment.trainer.examples,
                model=seat.model.name,
            )
        )
        return participant

    def take_turn(self, connection: Connection) -> RunEnded | None:
        """Pulls a round, trains and pushes; returns how the run ended once it has."""
        assert self._participant is not None, "a seat comes first"
        return self._participant.take_turn(connection)

    def take_only_turn(self, connection: Connection, seat: Seat, memory: Memory) -> Memory:
        """A turn in a run whose server lives as long as its clients; between turns little is left of one.

        `memory` is that of the client's last turn, which another process may have had; returns the next.
        """
        self._get_ready(connection, seat)
        assert self._participant is not None, "it is ready"
        self._participant.recall(memory)
        self.take_turn(connection)
        self._participant.rest()
        return self._participant.memory
