"""A client's turns in a run: pull a round, train, push the update.

phases.py says what follows from what; here it is done, with the server, the model and the disk.
"""

from __future__ import annotations

import time

from common.errors import FedError, RefusedError, StateError, SupersededError, UnavailableError, WireError
from common.events import Emit
from common.server_step.updates import reduced, write_c_from_move
from common.tensors.layout import Flat
from common.wire.chunks import START, Position
from fedclient.events import (
    Diverged,
    ResidualsLost,
    RoundTrained,
    StateDamaged,
    TrainingStarted,
    UpdateAskedFor,
    UpdateLate,
    UpdateRejected,
    UploadDamaged,
    UploadResumed,
    VariateReturned,
)
from fedclient.rpc.connection import Connection, PushReply
from fedclient.rpc.download import Download
from fedclient.rpc.round_stream import ON_THE_WAY, ReceivedRound, RunEnded, UpdateLost
from fedclient.run import phases
from fedclient.run.leaving import leaving_on_failure
from fedclient.run.phases import Ended, Handing, LastBroadcast, Phase, StateSource, Training, Waiting
from fedclient.run.prepare import Equipment
from fedclient.store.stored_update import StoredUpdate
from fedclient.training.core_gate import turn_to_train
from fedclient.training.task import Task, Update
from fedclient.training.train import DivergedError

PUSH_TRIES = 3
"""How often an update is sent that does not arrive as it was sent, before the connection is given up."""

RESENDS = 5
"""How often a server may ask for updates again before it sends a round; one that was restarted asks once."""
RESEND_WAIT_S = 0.05


class Participant:
    """A client in one run, with the phase it is in."""

    def __init__(self, equipment: Equipment, left_over: StoredUpdate | None, emit: Emit) -> None:
        self._seat = equipment.seat
        self._sender = equipment.sender
        self._trainer = equipment.trainer
        self._layout = equipment.layout
        self._state = equipment.state
        self._threads = equipment.threads
        self._demands = equipment.demands
        self._resends = 0
        """How often the server has asked for an update again on this connection, and sent no round."""
        self._emit = emit
        self._download = Download()
        self.phase: Phase = phases.begin(left_over)
        self._drops_damage()

    @property
    def run_id(self) -> str:
        """Of the run it takes part in."""
        return self._seat.run_id

    @property
    def reached(self) -> object:
        """How far it has come; the same as before if nothing at all got on."""
        phase = self.phase
        if isinstance(phase, Ended):
            return phase
        arrived = phase.arrived if isinstance(phase, Handing) else None
        return self.run_id, phase.memory.last_round, self._download.position, arrived

    @property
    def doing(self) -> str:
        """What a person is told of it."""
        phase = self.phase
        if isinstance(phase, Training):
            return f"training round {phase.task.round}"
        return (
            f"handing in round {phase.update.round}" if isinstance(phase, Handing) else "waiting for a round"
        )

    def take_turn(self, connection: Connection) -> RunEnded | None:
        """Pulls a round, trains and pushes; returns how the run ended once it has."""
        try:
            with leaving_on_failure(connection, self._seat, self._emit):
                if isinstance(self.phase, Waiting):
                    self._pull(connection, self.phase)
                if isinstance(self.phase, Training):
                    self._train(connection, self.phase)
            if isinstance(self.phase, Handing):
                self._push(connection, self.phase)
        except FedError:
            self.phase = phases.connection_lost(self.phase)
            self._resends = 0
            raise
        return self.phase.result if isinstance(self.phase, Ended) else None

    def rest(self) -> None:
        """Lets go of the last update, for a client whose server is never restarted."""
        self.phase = phases.confirmed(self.phase)

    def _pull(self, connection: Connection, waiting: Waiting) -> None:
        held = phases.held_rounds(waiting.memory, self._state.held_rounds())
        answer = connection.pull(self.run_id, waiting.memory.last_round, held, self._layout, self._download)
        if isinstance(answer, RunEnded):
            self._state.drop_update()
            self.phase = Ended(answer)
        elif isinstance(answer, UpdateLost):
            self.phase = phases.update_lost(waiting, answer.round)
            self._emit(UpdateAskedFor(round=answer.round, in_hand=isinstance(self.phase, Handing)))
            self._pause(answer.round)
        else:
            self._resends = 0
            self.phase = phases.round_came(waiting, answer)

    def _pause(self, r: int) -> None:
        """Takes longer and longer over a server that asks for updates only, and then leaves it."""
        self._resends += 1
        if self._resends > RESENDS:
            raise RefusedError(f"the server has asked {self._resends} times for round {r} and sends no other")
        if self._resends > 1:
            time.sleep(RESEND_WAIT_S * 2**self._resends)

    def _train(self, connection: Connection, training: Training) -> None:
        task = training.task
        self._demands.require_round(task.rules, *self._trainer.work(task.rules))
        if training.received.derives_c:
            _derive_c(task, training.memory.broadcast)
        try:
            state = self._settled_state(training.received)
        except StateError:
            if not self._drops_damage():
                raise
            # Asks for the round again, and with it for the c_i that is not here any more.
            self.phase = phases.connection_lost(training)
            return
        started = time.monotonic()
        try:
            with turn_to_train(self._threads):
                self._emit(TrainingStarted(round=task.shown_round))
                update = self._trainer.train(task, state)
        except DivergedError as error:
            self._emit(Diverged(round=task.round, reason=str(error)))
            connection.decline(self._seat, task.round, str(error))
            self.phase = phases.diverged(training)
            return
        if training.memory.keeps_state:
            self._state.write(task.round, task.state_layout, update.state)
        x = reduced(task.layout, task.broadcast) if task.rules.derived else []
        last = LastBroadcast(task.round, [array.copy() for array in x], update.step_sum)
        stored = _to_hand_in(task, update, training.received.canary_seconds)
        self._state.store_update(stored.stored(self._sender))
        self.phase = phases.trained(training, stored, last)
        seconds, r, steps = time.monotonic() - started, task.shown_round, update.steps
        self._emit(RoundTrained(round=r, steps=steps, loss=update.loss, seconds=seconds))

    def _drops_damage(self) -> bool:
        """Whether there was a damaged c_i; there is none any more."""
        reasons = self._state.drop_damaged()
        for reason in reasons:
            self._emit(StateDamaged(reason=reason))
        return bool(reasons)

    def _settled_state(self, received: ReceivedRound) -> Flat:
        """c_i and residuals as of the round that the server says counts; drops those of all others."""
        task, counted = received.task, received.counted_round
        layout = task.state_layout
        if not layout.specs:
            return layout.allocate()
        source = phases.state_source(
            counted,
            self._state.held_rounds(),
            came_along=received.lost_variate is not None,
            has_variate=bool(task.variates.specs),
        )
        if source is not StateSource.HELD:
            here = counted in self._state.held_rounds()
            # Residuals that are not here start again at zero.
            state = self._state.read(counted, layout) if here else layout.allocate()
            if source is StateSource.SERVER and received.lost_variate is not None:
                self._emit(VariateReturned(round=counted, clipped=here))
                state[: len(received.lost_variate)] = received.lost_variate
            else:
                self._emit(ResidualsLost(round=counted))
            self._state.write(counted, layout, state)
        self._state.settle(counted)
        return self._state.read(counted, layout)

    def _push(self, connection: Connection, handing: Handing) -> None:
        update = handing.update
        if handing.interrupted:
            self.phase = handing = phases.arrived(handing, connection.progress(self._seat, update))
        if handing.arrived != START:
            here, total = update.bytes_before(handing.arrived), update.num_bytes
            self._emit(UploadResumed(round=update.round, arrived_bytes=here, total_bytes=total))
        reply = self._send(connection, update, handing.arrived)
        if reply.outcome == "REJECTED":
            self._emit(UpdateRejected(round=update.round, reason=reply.message))
            connection.decline(self._seat, update.round, reply.message)
        elif reply.outcome == "LATE":
            self._emit(UpdateLate(round=update.round))
        taken = reply.outcome in ("ACCEPTED", "DUPLICATE")
        if not taken:
            self._state.drop_update()
        self.phase = phases.answered(handing, taken=taken)

    def _send(self, connection: Connection, update: StoredUpdate, start: Position) -> PushReply:
        """Sends an update until it arrives as it was sent."""
        for _ in range(PUSH_TRIES):
            try:
                reply = connection.push(self._sender, update, start)
            except SupersededError as error:
                raise UnavailableError(f"the upload was taken over: {error}") from error
            if reply.fault not in ON_THE_WAY:
                return reply
            self._emit(UploadDamaged(round=update.round, reason=reply.message))
            start = START
        raise UnavailableError(f"round {update.round}: the update does not arrive whole")


def _derive_c(task: Task, last: LastBroadcast | None) -> None:
    """Computes c where the server left that to its clients; before the first round it is zero."""
    if task.round == 1:
        return
    if last is None or last.round != task.round - 1:
        raise WireError.broken_contract(
            f"c of round {task.round} did not come, and the round before was missed"
        )
    write_c_from_move(task.layout, task.algorithm, last.reduced_x, task.broadcast, last.step_sum)


def _to_hand_in(task: Task, update: Update, canary_s: float | None) -> StoredUpdate:
    return StoredUpdate(
        round=update.round,
        encoding=task.encoding,
        payload=update.payload,
        steps=update.steps,
        loss=update.loss,
        validation_accuracy=update.validation_accuracy,
        seconds=update.seconds,
        canary_pull_seconds=canary_s,
    )
