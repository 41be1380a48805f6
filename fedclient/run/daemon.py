"""The client's life: join, then take turns until the run ends, through lost connections."""

from __future__ import annotations

import itertools
import time

import torch

from common.errors import UnavailableError, UnknownClientError
from common.events import Emit, of_client, of_run
from common.wire.capture import CaptureWriter
from fedclient.config import ClientConfig
from fedclient.events import ConnectionLost, Joined, Joining, RunFinished
from fedclient.rpc.connection import Connection, Seat
from fedclient.rpc.heartbeat import heartbeat
from fedclient.rpc.round_stream import RunEnded
from fedclient.run.backoff import Backoff
from fedclient.run.leaving import leaving_on_failure
from fedclient.run.prepare import left_over, prepare
from fedclient.run.turn import Participant
from fedclient.store.state import ClientState
from fedclient.transport.base import Transport
from fedclient.transport.captured import CapturedTransport
from fedclient.transport.grpc_transport import WINDOW_BYTES, GrpcTransport
from fedclient.transport.paced import PACED_WINDOW_BYTES, Pace, PacedTransport


class Daemon:
    """One client process."""

    def __init__(
        self,
        config: ClientConfig,
        state: ClientState,
        emit: Emit,
        capture: CaptureWriter | None = None,
    ) -> None:
        self._config = config
        self._state = state
        self._emit = of_client(emit, config.name)
        self._capture = capture
        self._calls = itertools.count()
        self._up = Pace(config.uplink) if config.uplink is not None else None
        self._down = Pace(config.downlink) if config.downlink is not None else None
        self._participant: Participant | None = None

    def run(self) -> RunEnded:
        """Takes part in the run until it ends; connects again as often as needed."""
        torch.set_num_threads(self._config.threads)
        backoff = Backoff()
        while True:
            try:
                with Connection(self._transport(), self._config.name) as connection:
                    seat = self.join(connection)
                    with heartbeat(connection, seat):
                        while (ended := self.take_turn(connection)) is None:
                            backoff.heard()
                        return self._finished(seat, ended)
            except (UnavailableError, UnknownClientError) as error:
                silent_s = backoff.failed(self._participant and self._participant.reached)
                if silent_s is None:
                    self._emit(ConnectionLost(reason=str(error), give_up_s=self._config.give_up_s))
                elif silent_s > self._config.give_up_s:
                    raise UnavailableError(f"{error}; gave up after {silent_s:.0f} s") from error
            time.sleep(backoff.next_wait())

    def _finished(self, seat: Seat, ended: RunEnded) -> RunEnded:
        if not ended.reason:
            self._emit(RunFinished(run=seat.run_id, round=ended.round, accuracy=ended.accuracy))
        return ended

    def _transport(self) -> Transport:
        window = WINDOW_BYTES if self._down is None else PACED_WINDOW_BYTES
        transport: Transport = GrpcTransport(self._config.server, self._config.access.read(), window)
        if self._up is not None or self._down is not None:
            transport = PacedTransport(transport, self._up, self._down)
        if self._capture is not None:
            transport = CapturedTransport(transport, self._capture, self._calls)
        return transport

    def join(self, connection: Connection) -> Seat:
        """Takes a seat, and gets ready for the run if it is a new one."""
        own = self._config.own_data
        if self._participant is None:
            self._emit(Joining(server=self._config.server))
        seat = connection.join((own.examples, own.class_names) if own else None)
        if self._participant is None or self._participant.run_id != seat.run_id:
            self._participant = self._participate(connection, seat)
        return seat

    def _participate(self, connection: Connection, seat: Seat) -> Participant:
        emit = of_run(self._emit, seat.run_id)
        with leaving_on_failure(connection, seat, emit):
            equipment = prepare(self._config, seat, self._state, emit)
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
        assert self._participant is not None, "join comes first"
        return self._participant.take_turn(connection)
