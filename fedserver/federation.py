"""One run from the first Join to the last round. Knows nothing of gRPC.

The servicer calls `join`, `next_round`, `begin` and `finish`; `run` opens rounds, folds the updates of each
in the order of client indices as they come in, and writes the run directory. Evaluation goes on beside the
next round.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np

from common.algorithms import ALGORITHMS, svr_names
from common.config import RunConfig
from common.errors import Fault, JoinError, RunError, UnknownClientError, WireError
from common.names import require_name
from common.schedule import step_size
from common.tensors import Flat, Layout, Purpose, TensorSpec, all_finite, fingerprint
from common.wire import chunk_frames
from fedserver.aggregate import Aggregate, ServerState
from fedserver.ledger import Ledger
from fedserver.members import Member, Members, OwnData
from fedserver.record import RunDir
from fedserver.spool import Spool, Upload
from fedserver.traffic import Traffic
from fedserver.workbench import Prepared, Workbench


class Outcome(Enum):
    """What became of an update; names as in `PushUpdateReply.Outcome`."""

    ACCEPTED = auto()
    DUPLICATE = auto()
    LATE = auto()


class Phase(Enum):
    """What a run is doing; names as in `StatusReply.Phase`."""

    PREPARING = auto()
    WAITING = auto()
    TRAINING = auto()
    FINISHED = auto()


@dataclass(frozen=True)
class Answer:
    """What a client handed in about its update, besides the tensors."""

    name: str
    round: int
    steps: int
    examples: int
    loss: float
    fingerprint: str = ""
    declined: str = ""
    validation_accuracy: float | None = None


@dataclass
class OpenRound:
    """A round that clients can pull and answer."""

    number: int
    frames: list[tuple[TensorSpec, int, bytes]]
    """The broadcast, encoded once: tensor, payload bytes and frame of every chunk."""
    answers: dict[int, asyncio.Future[Answer]]
    opened: float = field(default_factory=time.monotonic)


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
        run_dir: RunDir,
        workbench: Workbench,
        say: Callable[[str], None],
    ) -> None:
        self.config = config
        self.run_id = run_id
        self.members = Members(config.num_clients)
        self.traffic = Traffic()
        self.phase = Phase.PREPARING
        self.round: OpenRound | None = None
        self.last: Result | None = None
        self.end_reason = ""
        self.told: set[str] = set()
        """Names of the clients that know that the run is finished."""
        self._gone: dict[int, Answer] = {}
        """Clients that left, by index."""
        self.prepared: Prepared
        self.fingerprint: str
        self.layout: Layout
        self.ledger: Ledger
        self._run_dir = run_dir
        self._workbench = workbench
        self._say = say
        self._spool: Spool
        self._server: ServerState | None
        self._changed = asyncio.Condition()

    # What clients ask for.

    async def join(self, name: str, own_data: OwnData | None) -> Member:
        """A seat in the run; waits until all seats are taken."""
        require_name(name)
        if own_data is not None and own_data.examples < 1:
            raise JoinError(f"client {name!r} brings no examples; a shard needs at least one")
        member = await self.members.join(name, own_data, lambda: self._say_waiting(name))
        self._gone.pop(member.index, None)
        return member

    async def next_round(self, after: int, member: Member) -> OpenRound | None:
        """The first round later than `after` that this client has not answered; None once the run is
        finished.

        A client that has answered waits for the next round even if it forgot that it has, because its variate
        may be moved on at any moment now.
        """

        def ready() -> bool:
            if self.phase is Phase.FINISHED:
                return True
            current = self.round
            return current is not None and current.number > after and not current.answers[member.index].done()

        async with self._changed:
            await self._changed.wait_for(ready)
            return None if self.phase is Phase.FINISHED else self.round

    def leave(self, name: str, reason: str) -> None:
        """A client will not come back by itself: rounds go on without it until it joins again."""
        member = self.members.get(name)
        self._gone[member.index] = Answer(name=name, round=0, steps=0, examples=0, loss=0.0, declined=reason)
        self._say(f"{name} leaves: {reason}")
        if self.round is not None and not self.round.answers[member.index].done():
            self.round.answers[member.index].set_result(self._gone[member.index])

    def verdict(self, answer: Answer) -> Outcome | None:
        """What to make of an update before its tensors are read: None means go on."""
        member = self.members.get(answer.name)
        current = self.round.number if self.round is not None else 0
        if answer.round > current or answer.round < 1:
            raise WireError(
                Fault.WRONG_ROUND,
                f"round {current} is open, got an update for round {answer.round}",
            )
        assert self.round is not None
        if answer.round < current or self.phase is Phase.FINISHED:
            return Outcome.LATE
        if self.round.answers[member.index].done():
            return Outcome.DUPLICATE
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
        if not math.isfinite(answer.loss):
            raise WireError(Fault.NOT_FINITE, f"the training loss is {answer.loss}; lower --eta-l?")

    def begin(self) -> Upload:
        """Room for an update that `verdict` let pass."""
        return self._spool.begin()

    def finish(self, answer: Answer, upload: Upload | None) -> Outcome:
        """Counts a complete update, or notes that there will be none."""
        verdict = self.verdict(answer)
        if verdict is not None:
            return verdict
        assert self.round is not None
        member = self.members.get(answer.name)
        if upload is not None:
            upload.keep(self._spool.path(answer.round, member.index))
        else:
            self._say(f"round {answer.round}: {answer.name} has no update: {answer.declined}")
        self.round.answers[member.index].set_result(answer)
        return Outcome.ACCEPTED

    def eta_l(self, r: int) -> float:
        """The local step size of a round."""
        return step_size(self.config.schedule, self.config.eta_l, r, self.config.rounds)

    def require_run(self, run_id: str) -> None:
        """Raises for a peer of another run."""
        if run_id != self.run_id:
            raise UnknownClientError(f"this is run {self.run_id}, not {run_id or 'unnamed'}; join it first")

    # What the run does.

    async def run(self) -> None:
        """Everything from preparation to the last evaluation."""
        flat = await self._prepare()
        if not self.members.complete.is_set():
            self._say_waiting()
        await self.members.complete.wait()
        self._write_config()
        evaluation: asyncio.Task[None] | None = None
        try:
            for r in range(1, self.config.rounds + 1):
                flat, closing = await self._train(r, flat)
                if evaluation is not None:
                    await evaluation
                evaluation = asyncio.create_task(self._report(r, flat, closing))
            if evaluation is not None:
                await evaluation
            model_bytes = Layout(self.prepared.specs).num_bytes
            sets = await self._workbench.conformal(flat[:model_bytes], self.config.seed)
            self._run_dir.write_conformal(sets)
        except Exception as error:
            await self._finish(str(error))
            raise
        finally:
            if evaluation is not None:
                evaluation.cancel()
                await asyncio.gather(evaluation, return_exceptions=True)
        await self._finish("")

    async def _finish(self, reason: str) -> None:
        """Tells everybody who waits that the run is over."""
        async with self._changed:
            self.end_reason = reason
            self.phase = Phase.FINISHED
            self._changed.notify_all()

    async def _prepare(self) -> Flat:
        prepared = self.prepared = await self._workbench.prepare(self.config)
        parameters = [spec.name for spec in prepared.specs if spec.purpose is Purpose.MODEL]
        svr = svr_names(self.config.algorithm, self.config.svr, parameters, prepared.classifier)
        control = [
            TensorSpec(spec.name, spec.dtype, spec.shape, Purpose.CONTROL)
            for spec in prepared.specs
            if spec.name in svr and spec.purpose is Purpose.MODEL
        ]
        self.fingerprint = fingerprint(prepared.specs)
        self.layout = Layout([*prepared.specs, *control])
        self._spool = Spool(self._run_dir.path / "spool", self.layout)
        algorithm, pull = ALGORITHMS[self.config.algorithm], self.config.pull
        self.ledger = Ledger(self._run_dir.path / "ledger", self.layout, algorithm, pull)
        self._server = ServerState(self.layout, algorithm, pull) if algorithm.keeps_h else None
        flat = self.layout.allocate()
        flat[: len(prepared.x0)] = prepared.x0  # The model's tensors open the layout; c starts at zero.
        self.phase = Phase.WAITING
        self.members.open(prepared.shards, prepared.class_names)
        return flat

    def _write_config(self) -> None:
        members = sorted(self.members.by_name.values(), key=lambda member: member.index)
        self._run_dir.write_config(
            self.config.as_dict()
            | {
                "run_id": self.run_id,
                "fingerprint": self.fingerprint,
                "num_classes": self.prepared.model["num_classes"],
                "svr_names": [self.layout.specs[k].name for k in self.layout.indices(Purpose.CONTROL)],
                "class_names": self.prepared.class_names,
                "clients": [
                    {
                        "name": m.name,
                        "index": m.index,
                        "examples": m.examples,
                        # What a client's own data look like is nobody's business but its own.
                        "classes": self.prepared.histograms[m.index] if m.shard is not None else None,
                    }
                    for m in members
                ],
            }
        )

    async def _train(self, r: int, flat: Flat) -> tuple[Flat, dict[str, Any]]:
        """Opens a round, folds its updates until every client has answered, and closes it."""
        started = time.monotonic()
        frames = await asyncio.to_thread(lambda: list(chunk_frames(self.layout, flat)))
        loop = asyncio.get_running_loop()
        current = OpenRound(r, frames, {i: loop.create_future() for i in range(self.config.num_clients)})
        for i, left in self._gone.items():
            current.answers[i].set_result(left)
        async with self._changed:
            self.phase = Phase.TRAINING
            self.round = current
            self._changed.notify_all()
        aggregate = Aggregate(self.layout, flat)
        counted: dict[int, Answer] = {}
        answers = []
        for i, coming in current.answers.items():
            answers.append(answer := await coming)
            if not answer.declined:
                counted[i] = answer
                await asyncio.to_thread(self._fold, aggregate, r, i, answer)
        if not counted:
            raise RunError(
                f"round {r}: no client has an update to give; the run cannot go on (lower --eta-l?)"
            )
        closing: dict[str, Any] = {
            "updates": len(counted),
            "train_loss": sum(answer.loss for answer in counted.values()) / len(counted),
            "validation_accuracy": _mean(answer.validation_accuracy for answer in counted.values()),
            "eta_l": self.eta_l(r),
            "bytes": self.traffic.since_last(),
            "seconds": {"round": time.monotonic() - started},
            "drift": await asyncio.to_thread(aggregate.drift_diversity),
            "layer_drift": await asyncio.to_thread(aggregate.drift_diversity, by_layer=True),
        }
        if self.config.cka and self._evaluates(r):
            updates = [self._spool.path(r, i) for i in counted]
            closing["cka"] = await self._workbench.cka(updates, self.config.cka)
        new = await asyncio.to_thread(self._close, r, flat, aggregate, list(counted))
        closing["norms"] = {"c": self._norm(new), "clients": dict(self.ledger.norms)}
        return new, closing

    def _evaluates(self, r: int) -> bool:
        every = self.config.eval_every
        return r == self.config.rounds or bool(every and r % every == 0)

    def _norm(self, flat: Flat) -> float:
        """||c||."""
        arrays = (self.layout.array(flat, k) for k in self.layout.indices(Purpose.CONTROL))
        return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays))

    def _fold(self, aggregate: Aggregate, r: int, i: int, answer: Answer) -> None:
        weight = float(answer.examples) if self.config.weighting == "examples" else 1.0
        c_i = self.ledger.read(i) if self.layout.indices(Purpose.CONTROL) else None
        aggregate.add(self._spool.read(r, i), c_i, weight)

    def _close(self, r: int, flat: Flat, aggregate: Aggregate, counted: list[int]) -> Flat:
        """Makes the round count: the new x and c, and the c_i that went into them."""
        new = aggregate.result(self.config.eta_g, self.config.num_clients, self._server)
        for index, spec in enumerate(self.layout.specs):
            if not all_finite(self.layout.array(new, index), spec.dtype):
                raise RunError(f"round {r}: {spec.name} is not finite any more; lower --eta-l or --eta-g")
        for i in counted:
            self.ledger.count(i, r, flat, self._spool.read(r, i))
        self._run_dir.write_state(self.layout, new)
        self._spool.drop_round(r)
        return new

    async def _report(self, r: int, flat: Flat, closing: dict[str, Any]) -> None:
        """Evaluates x where that is due and writes the round's record."""
        result: dict[str, Any] = {"accuracy": None, "loss": None}
        started = time.monotonic()
        try:
            if self._evaluates(r):
                model_bytes = Layout(self.prepared.specs).num_bytes
                result = await self._workbench.evaluate(flat[:model_bytes])
                self.last = Result(r, result["accuracy"], result["loss"])
                closing["seconds"]["evaluate"] = time.monotonic() - started
        finally:
            # A run that is stopped meanwhile still has this round, only without its evaluation.
            self._run_dir.append_round({"round": r} | result | closing)
        accuracy = "" if result["accuracy"] is None else f"accuracy {result['accuracy']:.2%}, "
        down, up = (sum(closing["bytes"][direction].values()) for direction in ("down", "up"))
        self._say(
            f"round {r}/{self.config.rounds}: {accuracy}train loss {closing['train_loss']:.4f}, "
            f"{closing['updates']} updates, {down / 1e6:.2f} MB down, {up / 1e6:.2f} MB up, "
            f"{closing['seconds']['round']:.1f} s"
        )

    def _say_waiting(self, name: str = "") -> None:
        seats = f"{len(self.members.waiting)} of {self.config.num_clients} clients"
        self._say(f"{name} is here; {seats}" if name else f"waiting for clients; {seats} are here")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
