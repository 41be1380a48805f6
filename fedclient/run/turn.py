"""A client's turns in a run: pull a round, train, push the update.

phases.py says what follows from what; here it is done, with the server, the model and the disk.
"""

from __future__ import annotations

import time
from dataclasses import replace

from common.errors import (
    DivergedError,
    Fault,
    FedError,
    RefusedError,
    StateError,
    SupersededError,
    UnavailableError,
)
from common.events import Emit
from common.server_step.updates import reduced
from common.wire.chunks import START, Position
from fedclient.evaluation.report import report_evaluation
from fedclient.events import (
    Diverged,
    RoundTrained,
    TrainingStarted,
    UpdateAskedFor,
    UpdateLate,
    UpdateRejected,
    UploadDamaged,
    UploadResumed,
)
from fedclient.measures.events import GradientComputed
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.known_run import known_run
from fedclient.rpc.replies import PushReply
from fedclient.rpc.round_stream import ON_THE_WAY, RunEnded, UpdateLost
from fedclient.run import phases
from fedclient.run.derived_c import derive_c
from fedclient.run.handing import to_hand_in
from fedclient.run.held_state import HeldState
from fedclient.run.leaving import leaving_on_failure
from fedclient.run.phases import Ended, Handing, LastBroadcast, Memory, Phase, Training, Waiting
from fedclient.run.prepare import Equipment
from fedclient.store.stored_update import StoredUpdate
from fedclient.training.core_gate import turn_to_train

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
        self._held = HeldState(equipment, emit)
        self._threads = equipment.threads
        self._demands = equipment.demands
        self._has_written_down = False
        """Whether the state directory says what is trained."""
        self._resends = 0
        """How often the server has asked for an update again on this connection, and sent no round."""
        self._emit = emit
        self._download = Download()
        self.phase: Phase = phases.begin(left_over)
        self._held.drop_damage()

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
                    self._work(connection, self.phase)
            if isinstance(self.phase, Handing):
                self._push(connection, self.phase)
        except FedError:
            self.phase = phases.connection_lost(self.phase)
            self._resends = 0
            raise
        return self.phase.result if isinstance(self.phase, Ended) else None

    @property
    def memory(self) -> Memory:
        """What it carries from round to round."""
        return Memory() if isinstance(self.phase, Ended) else self.phase.memory

    def recall(self, memory: Memory) -> None:
        """Goes on from a memory that it took along, unless it has the same one itself."""
        if replace(self.memory, broadcast=None) != memory:
            self.phase = Waiting(memory)

    def rest(self) -> None:
        """Lets go of the last update, for a client whose server is never restarted."""
        self.phase = phases.confirmed(self.phase)

    def _pull(self, connection: Connection, waiting: Waiting) -> None:
        held = phases.held_rounds(waiting.memory, self._state.held_rounds())
        after, wanted = waiting.memory.last_round, self._held.frozen_wanted()
        answer = connection.pull(self.run_id, after, held, self._layout, self._download, wanted)
        if isinstance(answer, RunEnded):
            self._state.end()
            self.phase = Ended(answer)
        elif isinstance(answer, UpdateLost):
            self.phase = phases.update_lost(waiting, answer.round)
            self._emit(UpdateAskedFor(round=answer.round, in_hand=isinstance(self.phase, Handing)))
            self._pause(answer.round)
        else:
            self._resends = 0
            self.phase = phases.round_came(waiting, self._held.completed(answer))

    def _pause(self, r: int) -> None:
        """Takes longer and longer over a server that asks for updates only, and then leaves it."""
        self._resends += 1
        if self._resends > RESENDS:
            raise RefusedError(f"the server has asked {self._resends} times for round {r} and sends no other")
        if self._resends > 1:
            time.sleep(RESEND_WAIT_S * 2**self._resends)

    def _work(self, connection: Connection, training: Training) -> None:
        """Does what the round asks for: trains, evaluates x, or looks at the gradient there."""
        task = training.task
        self._demands.require_round(task.rules, *self._trainer.work(task.rules))
        if task.rules.evaluation_only:
            with turn_to_train(self._threads):
                personal = self._held.personal(training.received)
                report_evaluation(connection, self._seat, self._trainer, task, personal, self._emit)
            self.phase = phases.evaluated(training)
        elif task.rules.gradient_only:
            self._look_at_gradient(connection, training)
        else:
            self._train(connection, training)

    def _look_at_gradient(self, connection: Connection, training: Training) -> None:
        """Has the c_i that the run starts with for the server, which keeps it; here nothing is kept."""
        task = training.task
        try:
            with turn_to_train(self._threads):
                update = self._trainer.first_variate(task, self._held.personal(training.received))
        except DivergedError as error:
            self._emit(Diverged(round=1, reason=str(error)))
            connection.decline(self._seat, task.round, str(error), diverged=True)
            self.phase = phases.evaluated(training)
            return
        self.phase = Handing(training.memory, to_hand_in(task, update, self._seat, None))
        self._emit(GradientComputed(loss=update.loss, seconds=update.seconds))

    def _train(self, connection: Connection, training: Training) -> None:
        task = training.task
        if not (self._has_written_down or task.rules.canary):
            self._has_written_down = True
            self._state.remember(known_run(self._seat, task))
        if training.received.derives_c:
            derive_c(task, training.memory.broadcast)
        try:
            state = self._held.settled(training.received)
        except StateError:
            if not self._held.drop_damage():
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
            connection.decline(self._seat, task.round, str(error), diverged=True)
            self.phase = phases.diverged(training)
            return
        if training.memory.keeps_state:
            self._state.write(task.round, task.state_layout, update.state)
        x = reduced(task.layout, task.broadcast) if task.rules.derived else []
        last = LastBroadcast(task.rules, [array.copy() for array in x], update.steps)
        stored = to_hand_in(task, update, self._seat, training.received.canary_seconds)
        self._state.store_update(stored.stored(self._sender))
        self.phase = phases.trained(training, stored, last)
        seconds, r, steps = time.monotonic() - started, task.shown_round, update.steps
        self._emit(RoundTrained(round=r, steps=steps, loss=update.loss, seconds=seconds))

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
            diverged = reply.fault is Fault.NOT_FINITE
            connection.decline(self._seat, update.round, reply.message, diverged=diverged)
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
