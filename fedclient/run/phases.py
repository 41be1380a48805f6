"""The phases of a client in a run, and how one follows from another. Pure: values in, values out.

phase      what happens                                  next phase
---------  --------------------------------------------  ------------------------------------------------
(none)     an earlier process left an update             Handing, interrupted          `begin`
           it left none                                  Waiting                       `begin`
Waiting    a round comes                                 Training                      `round_came`
           the server lost the update, it is here        Handing                       `update_lost`
           the server lost the update, it is not here    Waiting for any round         `update_lost`
           the run is over                               Ended
Training   there is an update                            Handing                       `trained`
           training diverges, the server knows of it     Waiting                       `diverged`
           it asks for an evaluation, and has it         Waiting, as before the round  `evaluated`
           the connection breaks                         Waiting, as before the round  `connection_lost`
Handing    the connection breaks                         Handing, interrupted          `connection_lost`
           another stream goes on with the upload        Handing, interrupted          `connection_lost`
           the server tells how much has arrived         Handing from there            `arrived`
           accepted, or had arrived before               Waiting, taken                `answered`
           late or rejected                              Waiting, not taken            `answered`
           it was a rehearsal                            Waiting, as at first          `answered`

What a client does in a phase is in turn.py; what it remembers on disk is in fedclient/store.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from common.errors import StateError
from common.server_step.rules import Rules
from common.tensors.layout import Array
from common.wire.chunks import START, Position
from fedclient.rpc.round_stream import ReceivedRound, RunEnded
from fedclient.store.stored_update import StoredUpdate
from fedclient.training.task import Task


@dataclass(frozen=True, eq=False)
class LastBroadcast:
    """What a client needs of a round to compute the c of the next one."""

    rules: Rules
    reduced_x: list[Array]
    """x on S_svr, in the order of c."""
    steps: int
    """K_i."""

    @property
    def round(self) -> int:
        """r."""
        return self.rules.round


@dataclass(frozen=True)
class Memory:
    """What a client carries from phase to phase."""

    last_round: int = 0
    """The last round it is done with. 0 also where it no longer has the x of that round: the server may leave
    it to a client that names a round to compute c from that x."""
    taken: bool = False
    """Whether the server took the update of that round."""
    keeps_state: bool = False
    """Whether there is anything to remember from round to round; a round's settings tell."""
    broadcast: LastBroadcast | None = None
    """Of the last round this process has trained."""


@dataclass(frozen=True)
class Waiting:
    """Until the server opens a round that this client has not answered."""

    memory: Memory = field(default_factory=Memory)
    handed_in: StoredUpdate | None = None
    """The update of the last round: until the next shows that it counts, a server may ask for it again."""


@dataclass(frozen=True)
class Training:
    """A round has come, and there is no update for it yet."""

    memory: Memory
    received: ReceivedRound

    @property
    def task(self) -> Task:
        """What the round asks for."""
        return self.received.task


@dataclass(frozen=True)
class Handing:
    """There is an update that the server has not answered for."""

    memory: Memory
    update: StoredUpdate
    interrupted: bool = False
    """Whether an attempt to hand it in has failed, so that part of it may have arrived."""
    arrived: Position = START
    """How much of it had arrived when that was last asked."""


@dataclass(frozen=True)
class Ended:
    """The run is over."""

    result: RunEnded


Phase = Waiting | Training | Handing | Ended


def begin(left_over: StoredUpdate | None) -> Waiting | Handing:
    """The first phase of a process; part of an update that an earlier one left may have arrived."""
    return Waiting() if left_over is None else Handing(Memory(), left_over, interrupted=True)


def confirmed(phase: Phase) -> Phase:
    """Forgets the update of the last round, where it is known that nobody will ask for it again."""
    return replace(phase, handed_in=None) if isinstance(phase, Waiting) else phase


def round_came(waiting: Waiting, received: ReceivedRound) -> Training:
    """Forgets the last update: the server has closed its round, and will not ask for it again."""
    task, memory = received.task, waiting.memory
    keeps_state = memory.keeps_state if task.rules.evaluation_only else bool(task.state_layout.specs)
    return Training(replace(memory, keeps_state=keeps_state), received)


def evaluated(training: Training) -> Waiting:
    """Done with a round that asks for no update: all is as before it."""
    return Waiting(training.memory)


def update_lost(waiting: Waiting, r: int) -> Waiting | Handing:
    """Hands the update of a round in again or, where it is not here, asks for the round once more."""
    if waiting.handed_in is not None and waiting.handed_in.round == r:
        return Handing(waiting.memory, waiting.handed_in)
    return replace(waiting, memory=replace(waiting.memory, last_round=0))


def trained(training: Training, update: StoredUpdate, broadcast: LastBroadcast) -> Handing:
    """The next c may have to be computed from this round's x, whatever becomes of the update."""
    return Handing(replace(training.memory, broadcast=broadcast), update)


def diverged(training: Training) -> Waiting:
    """Done with the round, and the c_i that counted before it still does."""
    return Waiting(replace(training.memory, last_round=training.task.round, taken=False))


def connection_lost(phase: Phase) -> Phase:
    """A round that has no update is asked for again; an update is handed in from where it broke off."""
    if isinstance(phase, Training):
        return Waiting(phase.memory)
    if isinstance(phase, Handing):
        return replace(phase, interrupted=True)
    return phase


def arrived(handing: Handing, position: Position) -> Handing:
    """Goes on from there."""
    return replace(handing, arrived=position)


def answered(handing: Handing, *, taken: bool) -> Waiting:
    """Done with the round of the update; of what comes before round 1 nothing is remembered."""
    if handing.update.is_apart:
        return Waiting()
    memory, r = handing.memory, handing.update.round
    # An update that an earlier process trained: its x is gone, so its round is not named to the server.
    knows_x = memory.broadcast is not None and memory.broadcast.round == r
    memory = replace(memory, taken=taken, last_round=r if knows_x else memory.last_round)
    return Waiting(memory, handing.update if taken else None)


def held_rounds(memory: Memory, on_disk: list[int]) -> list[int]:
    """The rounds whose c_i is here, as a request names them; `on_disk` are those of the state directory.

    The server sends c_i along if the one that counts is not among them. An empty list means to it "just that
    of the last round", which is the usual case and costs no byte.
    """
    if memory.last_round:
        if not memory.keeps_state:
            return []  # There is no c_i that could be lost.
        if memory.taken and memory.last_round in on_disk:
            return []  # The last update will count, and its c_i is here. The one before is not needed then.
        # The last update does not count, so an earlier c_i does: name all. 0 stands for none at all, because
        # an empty list would claim the last round's.
        return on_disk or [0]
    # No round is named, so an empty list claims nothing.
    return on_disk


class StateSource(Enum):
    """Where the state that a round starts from comes from."""

    HELD = auto()
    """It is here, or the client has never counted and starts from zero."""
    SERVER = auto()
    """The server has sent it: the client has lost its c_i, or has computed one that does not count."""
    LOST = auto()
    """What coding left out is lost. Nobody else has that, and training goes on without it."""


def state_source(
    counted: int, on_disk: Collection[int], *, came_along: bool, has_variate: bool
) -> StateSource:
    """Where the state of the round that counts is; raises if it is nowhere.

    `came_along`: the server has sent c_i. `has_variate`: there is a c_i in this run, and not just residuals.
    """
    if came_along:
        return StateSource.SERVER
    if counted in on_disk or counted == 0:
        return StateSource.HELD
    if has_variate:
        raise StateError(f"the server counts the variate of round {counted}, which is not here")
    return StateSource.LOST
