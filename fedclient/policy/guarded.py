"""A conversation through a site's gate: what leaves is held against its rules and written down first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from common.data.names import DATASETS
from common.events import Emit
from common.metrics.message import supports_in, to_message
from common.models.names import BUILT_IN
from common.records.sites import SiteCounts
from common.tensors.layout import NOTHING, Flat, Layout, Purpose, TensorSpec, to_float64
from common.wire.chunks import START, Position
from fedclient.policy.facts import Departure, Kind
from fedclient.policy.gate import Gate
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.replies import PushReply
from fedclient.rpc.round_stream import ReceivedRound, RunEnded, UpdateLost
from fedclient.rpc.seat import Seat
from fedclient.run.leaving import leaving_on_failure
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.training.task import Task
from fedclient.transport.base import Transport

COUNT_BYTES = 8
NORM_BLOCK = 1 << 15
"""Elements that stay in a core's cache."""
TOLD_EVALUATION = "evaluation"
TOLD_WITH_UPDATE = (
    "examples",
    "steps",
    "loss",
    "validation_accuracy",
    "train_seconds",
    TOLD_EVALUATION,
    "measures",
)


class GuardedConnection(Connection):
    """A connection on which nothing leaves that the site's policy does not let out."""

    def __init__(self, transport: Transport, name: str, data_dir: str, gate: Gate, emit: Emit) -> None:
        super().__init__(transport, name, data_dir)
        self._gate = gate
        self._emit = emit
        self._seat: Seat | None = None
        self._task: Task | None = None
        """The round that was admitted last; its x is kept until its update has left."""

    def join(self, own_data: tuple[int, tuple[str, ...]] | None, test_examples: int = 0) -> Seat:
        """Takes a seat in a run that the site may take part in; tells the server if it may not."""
        number = 0
        if own_data is not None:
            examples, names = own_data
            self._gate.require(examples=examples)
            size = COUNT_BYTES + sum(len(name.encode()) for name in names)
            told = ("examples", "classes", *(("test_examples",) if test_examples else ()))
            number = self._gate.depart(Departure(kind="join", bytes=size, told=told))
        seat = self._seat = super().join(own_data, test_examples)
        if number:
            self._gate.receipt(number, "SEATED", seat.run_id)
        with leaving_on_failure(self, seat, self._emit):
            self._gate.require(**offer(seat, has_data=own_data is not None))
        return seat

    def pull(
        self,
        run_id: str,
        after: int,
        held_rounds: list[int],
        model: Layout,
        download: Download,
        frozen: Layout = NOTHING,
    ) -> ReceivedRound | RunEnded | UpdateLost:
        """A round comes to be trained only if its update may leave."""
        answer = super().pull(run_id, after, held_rounds, model, download, frozen)
        if isinstance(answer, ReceivedRound):
            self._admit(answer.task)
        return answer

    def _admit(self, task: Task) -> None:
        seat, rules = self._seated(), task.rules
        if rules.evaluation_only:
            return
        codecs = (rules.update_codec, rules.control_codec) if task.sends_variate else (rules.update_codec,)
        self._gate.require(
            others=rules.num_clients - 1,
            rounds=rules.rounds if rules.gradient_only else max(rules.rounds, rules.round),
            algorithm=rules.algorithm,
            codecs=codecs,
        )
        size = task.encoding.tensor_bytes
        planned = Departure(kind="update", run=seat.run_id, round=task.round, bytes=size)
        self._gate.require_departure(planned)
        self._gate.await_approval(_kind(seat, task, codecs), seat.run_id, self._emit, self._tell)
        self._task = task

    def _tell(self, rule: str) -> None:
        self.awaiting_rule = rule
        self.renew(self._seated())

    def push(self, sender: Sender, stored_update: StoredUpdate, start: Position = START) -> PushReply:
        """Hands in an update once it is written down that it leaves."""
        task = self._task if self._task and self._task.round == stored_update.round else None
        update, layout = self._told(sender, stored_update, task), stored_update.encoding.layout
        departure = Departure(
            kind="update",
            run=sender.run_id,
            round=update.round,
            update=update.id,
            tensors=tuple(spec.name for spec in layout.specs),
            bytes=update.num_bytes - update.bytes_before(start),
            norm=_norm(update, task.layout, task.broadcast) if task else None,
            told=tuple(name for name in TOLD_WITH_UPDATE if getattr(update, name, 0) is not None),
        )
        with leaving_on_failure(self, self._seated(), self._emit):
            self._gate.require(codecs=_codecs(update))
            number = self._gate.depart(departure)
        self._task = None
        reply = super().push(sender, update, start)
        self._gate.receipt(number, reply.outcome, sender.run_id, update.round)
        return reply

    def report(self, seat: Seat, r: int, found: SiteCounts) -> PushReply:
        """Tells how x does at this site, if its counts may be told."""
        classes = seat.model.num_classes
        evaluation = to_message(found, classes)
        if not self._may_tell(supports_in(evaluation, classes)):
            return self.decline(seat, r, "the site's rule suppress_below: a class has too few examples")
        size = evaluation.ByteSize()
        departure = Departure(
            kind="evaluation", run=seat.run_id, round=r, bytes=size, told=(TOLD_EVALUATION,)
        )
        with leaving_on_failure(self, seat, self._emit):
            number = self._gate.depart(departure)
        reply = super().report(seat, r, found)
        self._gate.receipt(number, reply.outcome, seat.run_id, r)
        return reply

    def _may_tell(self, supports: Iterable[int]) -> bool:
        """Whether every class that occurs has examples enough; how x does on them is not their number."""
        return all(map(self._gate.may_tell, supports))

    def _told(self, sender: Sender, update: StoredUpdate, task: Task | None) -> StoredUpdate:
        """Without an accuracy of too few examples, and without what was measured of steps on too few.

        How many they were is known as long as its round is.
        """
        found, model = update.evaluation, self._seated().model
        if found is not None and not self._may_tell(supports_in(found, model.num_classes)):
            update = replace(update, evaluation=None)
        held_out = task.rules.held_out(sender.examples) if task else 0
        batch = task.rules.batch(sender.examples - held_out) if task else 0
        if update.measures is not None and not self._gate.may_tell(batch):
            update = replace(update, measures=None)
        if update.validation_accuracy is None or self._gate.may_tell(held_out):
            return update
        return replace(update, validation_accuracy=None)

    def _seated(self) -> Seat:
        assert self._seat is not None, "a seat comes first"
        return self._seat


def offer(seat: Seat, *, has_data: bool) -> dict[str, Any]:
    """What a server says of its run to whoever joins."""
    functions = (name for _, name in seat.functions)
    dataset = () if has_data or seat.dataset is None else (seat.dataset,)
    named = [
        *(name for name in (seat.model.name,) if name not in BUILT_IN),
        *(name for name in dataset if name not in DATASETS),
        *functions,
    ]
    facts: dict[str, Any] = {
        "run": seat.run_id,
        "model": seat.model.name,
        "fingerprint": seat.fingerprint,
        "modules": tuple(named),
        "others": seat.num_clients - 1,
        "rounds": seat.rounds,
    }
    return facts if has_data else facts | {"examples": len(seat.indices)}


def _kind(seat: Seat, task: Task, codecs: tuple[str, ...]) -> Kind:
    shape = "x".join(map(str, seat.model.image_shape))
    return Kind(
        model=seat.model.name,
        fingerprint=seat.fingerprint,
        classes=seat.class_names,
        example=f"{shape} {seat.model.dtype}",
        normalisation=(seat.mean, seat.std),
        algorithm=task.rules.algorithm,
        codecs=codecs,
        tensors=tuple(map(_described, task.sent_specs)),
    )


def _described(spec: TensorSpec) -> str:
    purpose, shape = spec.purpose.name, "x".join(map(str, spec.shape))
    return f"{purpose.lower()} {spec.name} {spec.dtype} {shape}"


def _codecs(update: StoredUpdate) -> tuple[str, ...]:
    """Which codecs an update really has; those that save nothing for a tensor are not used for it."""
    codecs = (tensor_encoding.codec for tensor_encoding in update.encoding.tensor_encodings)
    return tuple(sorted({codec.name for codec in codecs if codec.lossy})) or ("fp32",)


def _norm(update: StoredUpdate, layout: Layout, x: Flat) -> float:
    """Of y_i - x, buffers and c_i left out."""
    encoding = update.encoding
    values, total = encoding.decode(update.payload, None), 0.0
    places = dict(zip(layout.indices(Purpose.MODEL), encoding.layout.indices(Purpose.MODEL), strict=True))
    for k, own in places.items():
        dtype, is_move = layout.specs[k].dtype, encoding.tensor_encodings[own].difference
        y, before = encoding.elements(values, own), layout.array(x, k).reshape(-1)
        for start in range(0, len(y), NORM_BLOCK):
            block = slice(start, start + NORM_BLOCK)
            moved = to_float64(y[block], dtype)
            if not is_move:
                moved -= to_float64(before[block], dtype)
            total += float(np.dot(moved, moved))
    return math.sqrt(total)
