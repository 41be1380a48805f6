"""What a client keeps in memory for one run, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.errors import WireError
from common.server_step.updates import share_variate
from common.tensors.layout import Array, Layout
from common.wire.chunks import START, Position
from fedclient.rpc.connection import Seat
from fedclient.rpc.download import Download
from fedclient.store.state import Kept
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.training.train import Task, Trainer


@dataclass
class Work:
    """What a client keeps in memory for one run."""

    seat: Seat
    trainer: Trainer
    layout: Layout
    kept: Kept
    last_round: int = 0
    """The last round this client is done with."""
    pending: StoredUpdate | None = None
    """An update that the server has not answered for yet."""
    last: StoredUpdate | None = None
    """The update before, until the next round shows that it counts: a restarted server may ask for it."""
    broke_off: bool = False
    """Whether an attempt to push it has failed, so that part of it may have arrived."""
    arrived: Position = START
    """How much of it had arrived when that was last asked."""
    counts: bool = False
    """Whether the server took the last update."""
    keeps: bool = False
    """Whether there is a variate to keep at all."""
    seen: Seen | None = None
    download: Download = field(default_factory=Download)

    def sender(self, name: str) -> Sender:
        """Whose updates these are."""
        return Sender(self.seat.run_id, name, self.seat.fingerprint, self.trainer.examples)


@dataclass(frozen=True)
class Seen:
    """What a client needs of a round to compute the c of the next one."""

    round: int
    reduced_x: list[Array]
    step_sum: float


def held_rounds(work: Work) -> list[int]:
    """The rounds whose c_i is here, as a request tells them: nothing if it is just the last round's."""
    held = work.kept.held_rounds()
    if work.last_round and (not work.keeps or (work.counts and work.last_round in held)):
        return []
    return held or ([0] if work.last_round else [])


def derive_c(work: Work, task: Task) -> None:
    """Computes c where the server left that to its clients; before the first round it is zero."""
    if task.round == 1:
        return
    if work.seen is None or work.seen.round != task.round - 1:
        raise WireError.malformed(f"c of round {task.round} did not come, and the round before was missed")
    share_variate(task.layout, task.algorithm, work.seen.reduced_x, task.down, work.seen.step_sum)
