"""The state of one run, and what clients may ask of it. Knows nothing of gRPC.

The service calls `join`, `next_round`, `verdict`, `begin`, `part`, `examine`, `drop`, `finish` and `leave`;
`rounds` opens rounds, folds what was handed in and closes them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

from common import seeds
from common.algorithms.schedule import step_size
from common.errors import Fault, JoinError, UnavailableError, UnknownClientError, WireError
from common.names import require_name
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat, Layout, fingerprint
from common.wire.capture import CaptureWriter
from common.wire.chunks import Frame, Position
from common.wire.encoding import Encoding
from fedserver.access.token_bucket import TokenBucket
from fedserver.config import RunConfig
from fedserver.run.deadlines import WaitingRule, supervise
from fedserver.run.leases import Leases
from fedserver.run.members import Member, Members, OwnData
from fedserver.run.round import Answer, OpenRound, Outcome
from fedserver.store.spool import Spool, Upload
from fedserver.store.variates import Variates
from fedserver.traffic.traffic import Traffic
from fedserver.worker.process import Prepared

JOINS_PER_S = 200.0
MAX_WAITING = 1000
"""Clients that may wait for a seat beside those there are seats for."""


MAX_OWN_CLASSES = 10_000


class Phase(Enum):
    """What a run is doing; names as in `StatusReply.Phase`."""

    PREPARING = auto()
    WAITING = auto()
    TRAINING = auto()
    FINISHED = auto()


@dataclass(frozen=True)
class Result:
    """The last evaluation."""

    round: int
    accuracy: float
    loss: float


class Federation:
    """The state of one run."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        say: Callable[[str], None],
        capture: CaptureWriter | None = None,
    ) -> None:
        self.config = config
        self.run_id = run_id
        self.say = say
        self.members = Members(config.num_clients, config.min_clients)
        self.leases = Leases(config.lease)
        self.traffic = Traffic(lambda name: name in self.members.by_name, capture)
        self.phase = Phase.PREPARING
        self.round: OpenRound | None = None
        self.last: Result | None = None
        self.end_reason = ""
        self.told: set[str] = set()
        """Names of the clients that know that the run is finished."""
        self.prepared: Prepared
        self.fingerprint: str
        self.down: Encoding
        """How x and c travel."""
        self.update_reader: UpdateReader
        """How updates travel and are read."""
        self.variates: Variates
        self.spool: Spool
        self._gone: dict[int, Answer] = {}
        """Clients that left, by index."""
        self._joins = TokenBucket(JOINS_PER_S, MAX_WAITING + config.num_clients)
        self._stopping = False
        self._changed = asyncio.Condition()

    async def gather(self) -> None:
        """Where N is not given: waits until enough clients are here and no other has come for a while."""
        if self.config.gather is None or self.members.complete.is_set():
            return
        here, quiet_since = set(self.members.waiting), time.monotonic()
        while len(here) < self.config.num_clients or time.monotonic() - quiet_since < self.config.gather:
            await asyncio.sleep(0.1)
            if here != (here := set(self.members.waiting)):
                quiet_since = time.monotonic()
        self.say(f"{len(here)} clients are here and nobody else comes; they make up the run")
        self.config = replace(self.config, num_clients=len(here))
        self.members.num_clients = self.members.needed = len(here)

    def set_up(
        self,
        prepared: Prepared,
        down: Encoding,
        update_reader: UpdateReader,
        variates: Variates,
        spool: Spool,
    ) -> None:
        """Lets clients join, now that there is something to join."""
        self.prepared = prepared
        self.fingerprint = fingerprint(prepared.specs)
        self.down = down
        self.update_reader = update_reader
        self.variates = variates
        self.spool = spool
        self.phase = Phase.WAITING
        self.members.open(prepared.shards, prepared.class_names)

    @property
    def layout(self) -> Layout:
        """Of x, the buffers and c."""
        return self.down.layout

    async def open(self, r: int, seen: Flat, frames: list[Frame], derivable: bool) -> OpenRound:
        """Opens a round and wakes the clients that wait for one."""
        loop = asyncio.get_running_loop()
        answers = {i: loop.create_future() for i in self.drawn(r)}
        current = OpenRound(r, seen, frames, derivable, answers)
        for i, left in self._gone.items():
            if i in answers:
                answers[i].set_result(left)
        async with self._changed:
            self.phase = Phase.TRAINING
            self.round = current
            self.traffic.open_round(r)
            self._changed.notify_all()
        return current

    def drawn(self, r: int) -> list[int]:
        """The clients of a round, by index: all that are seated, or as many as are drawn for each round.

        Seed and round alone decide, except that clients that are gone are taken only where too few are here.
        """
        n, s = self.config.num_clients, self.config.clients_per_round or self.config.num_clients
        order = range(n) if s == n else seeds.stream(self.config.seed, seeds.SELECTION, r).permutation(n)
        seated = [int(i) for i in order if int(i) in self.members.by_index]
        return sorted(sorted(seated, key=self.is_gone)[:s])

    def is_gone(self, i: int) -> bool:
        """Whether a client has left, or has not been heard of for too long."""
        return i in self._gone or self.leases.left(i) <= 0

    async def supervise(self, current: OpenRound) -> None:
        """Sees to it that a round ends."""
        waiting_rule = WaitingRule(self.config.deadline, self.config.quorum)
        await supervise(current, waiting_rule, self.leases, lambda i: self.members.by_index[i].name, self.say)

    def heard_of(self, name: str) -> Member:
        """The member of this name, which has just given a sign of life."""
        member = self.members.get(name)
        self.leases.renew(member.index)
        return member

    async def stop(self) -> None:
        """Sends everybody away who waits; they may come back to another server process."""
        async with self._changed:
            self._stopping = True
            self.members.turn_away(UnavailableError("the server is stopping"))
            self._changed.notify_all()

    async def end(self, reason: str) -> None:
        """Tells everybody who waits that the run is over."""
        async with self._changed:
            self.end_reason = reason
            self.phase = Phase.FINISHED
            self._changed.notify_all()

    async def join(self, name: str, own_data: OwnData | None) -> Member:
        """A seat in the run; waits until there are enough clients to start."""
        require_name(name)
        if not self._joins.take() or len(self.members.waiting) > self.config.num_clients + MAX_WAITING:
            raise UnavailableError("too many clients join at once; try again")
        if own_data is not None and len(own_data.class_names) > MAX_OWN_CLASSES:
            many = len(own_data.class_names)
            raise JoinError(f"client {name!r} names {many} classes; at most {MAX_OWN_CLASSES} are allowed")
        if own_data is not None and own_data.examples < 1:
            raise JoinError(f"client {name!r} brings no examples; a shard needs at least one")
        known = name in self.members.by_name or not self.members.complete.is_set()
        member = await self.members.join(name, own_data, lambda: self.say_waiting(name))
        if not known:
            self.say(
                f"{name} joins; {len(self.members.by_name)} of {self.config.num_clients} seats are taken"
            )
        self._gone.pop(member.index, None)
        self.leases.renew(member.index)
        return member

    async def next_round(self, member: Member) -> OpenRound | None:
        """The open round as soon as there is one that this client has not answered; None once all are over.

        A client that has answered waits for the next round even if it forgot that it has, because its variate
        may be moved on at any moment now.
        """

        def ready() -> bool:
            if self.phase is Phase.FINISHED or self._stopping:
                return True
            return self.round is not None and self.round.waits_for(member.index)

        async with self._changed:
            await self._changed.wait_for(ready)
            if self._stopping:
                raise UnavailableError("the server is stopping")
            return None if self.phase is Phase.FINISHED else self.round

    def all_told(self) -> bool:
        """Whether every client that has not left knows that the run is finished."""
        here = (m.name for m in self.members.by_name.values() if m.index not in self._gone)
        return all(name in self.told for name in here)

    def leave(self, name: str, reason: str) -> None:
        """A client will not come back by itself: rounds go on without it until it joins again."""
        member = self.members.get(name)
        if member.index in self._gone and not (self.round and self.round.waits_for(member.index)):
            return
        self._gone[member.index] = Answer(name=name, round=0, steps=0, examples=0, loss=0.0, declined=reason)
        self.say(f"{name} leaves: {reason}")
        if self.round is not None and self.round.waits_for(member.index):
            self.round.answers[member.index].set_result(self._gone[member.index])

    def verdict(self, answer: Answer) -> Outcome | None:
        """What to make of an update before its tensors are read: None means go on."""
        member = self.members.get(answer.name)
        if self.round is None:
            raise UnavailableError("no round is open yet; try again")
        current = self.round.number
        if answer.round > current or answer.round < 1:
            raise WireError(
                Fault.WRONG_ROUND,
                f"round {current} is open, got an update for round {answer.round}",
            )
        if answer.round < current or self.phase is Phase.FINISHED:
            return Outcome.LATE
        if not self.round.waits_for(member.index):
            return Outcome.DUPLICATE if self.round.has_answer_of(member.index) else Outcome.LATE
        if not answer.declined:
            self._check(answer, member)
        return None

    def _check(self, answer: Answer, member: Member) -> None:
        if answer.fingerprint != self.fingerprint:
            raise WireError(
                Fault.WRONG_MODEL,
                f"the update is of another model: expected fingerprint {self.fingerprint[:12]}, "
                f"got {answer.fingerprint[:12] or 'none'}",
            )
        if answer.steps < 1:
            raise WireError(Fault.MALFORMED, f"steps (K_i) must be at least 1, got {answer.steps}")
        if answer.examples != member.examples:
            raise WireError(
                Fault.MALFORMED,
                f"client {member.name!r} joined with {member.examples} examples, got {answer.examples}",
            )
        if not 0 <= answer.train_seconds < math.inf:
            raise WireError.malformed(f"train_seconds must not be negative, got {answer.train_seconds}")
        if not math.isfinite(answer.loss):
            raise WireError(Fault.NOT_FINITE, f"the training loss is {answer.loss}; lower --eta-l?")

    def begin(self, answer: Answer, start: Position) -> Upload:
        """Room for an update that `verdict` let pass, or what has come of it so far."""
        return self.spool.upload(self.members.get(answer.name).index, answer.update_id, start)

    def part(self, name: str, r: int, update_id: str) -> Upload | None:
        """What has come so far of an update for the open round."""
        member = self.members.get(name)
        if self.round is None or self.round.number != r:
            return None
        return self.spool.part(member.index, update_id)

    def drop(self, name: str, upload: Upload) -> None:
        """Forgets what has come of a client's update."""
        self.spool.drop(self.members.get(name).index, upload)

    def examine(self, answer: Answer, raw: Flat) -> None:
        """Raises if the variate that the server computes from an update is not finite."""
        member, current = self.members.get(answer.name), self.round
        assert current is not None
        step_sum = answer.steps * self.eta_l(answer.round)
        if not self.update_reader.variate_is_finite(
            raw, current.seen, self.variates.read(member.index), step_sum
        ):
            raise WireError(
                Fault.NOT_FINITE, "the control variate of this update is not finite; lower --eta-l?"
            )

    def finish(self, answer: Answer, upload: Upload | None = None) -> Outcome:
        """ByteCounts a complete update, or notes that there will be none."""
        verdict = self.verdict(answer)
        if verdict is not None:
            return verdict
        assert self.round is not None
        member = self.members.get(answer.name)
        if upload is None:
            self.say(f"round {answer.round}: {answer.name} has no update: {answer.declined}")
        else:
            self.spool.keep(member.index, answer.round, upload)
        self.round.answers[member.index].set_result(answer)
        return Outcome.ACCEPTED

    def eta_l(self, r: int) -> float:
        """The local step size of a round."""
        return step_size(self.config.schedule, self.config.eta_l, r, self.config.rounds)

    def require_run(self, run_id: str) -> None:
        """Raises for a peer of another run."""
        if run_id != self.run_id:
            raise UnknownClientError(f"this is run {self.run_id}, not {run_id or 'unnamed'}; join it first")

    def say_waiting(self, name: str = "") -> None:
        """Says who is here while the run waits for clients."""
        least = "at least " if self.config.gather is not None and self.phase is Phase.PREPARING else ""
        seats = f"{len(self.members.waiting)} of {least}{self.members.needed} clients"
        self.say(f"{name} is here; {seats}" if name else f"waiting for clients; {seats} are here")
