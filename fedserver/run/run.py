"""A run whose model is built: what does not change any more, and where it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from common.algorithms import ALGORITHMS
from common.algorithms.base import Algorithm
from common.algorithms.schedule import step_size
from common.atomic import sync
from common.metrics.message import MAX_TOGETHER
from common.records.run import RunRecord, Seat
from common.server_step.adaptive import Choice
from common.server_step.robust import on_probation
from common.server_step.rules import Rules
from common.tensors.buffers import Buffers
from common.tensors.classes import NONE_FROZEN, FrozenTensors, TensorClass, TensorClasses
from common.tensors.layout import Flat, Layout, Purpose, fingerprint
from common.wire.encoding import Encoding, downward
from fedserver.config import RunConfig
from fedserver.members.seats import Member
from fedserver.store.checkpoints import Checkpoints
from fedserver.store.run_dir import RunDir
from fedserver.store.spool import Spool
from fedserver.store.variates import Variates
from fedserver.worker.messages import Prepared

SMALL_BYTES = 1 << 17
"""A pass over this many bytes is over before another thread has begun."""
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """The settings, the model and the stores of a run that clients can join.

    It has one S_svr. Where that changes after a round, another Run takes its place, with the same stores.
    """

    id: str
    config: RunConfig
    """With N as it is, also where it was not given."""
    prepared: Prepared
    down: Encoding
    """How x and c travel."""
    up: Encoding
    """How updates travel."""
    run_dir: RunDir
    checkpoints: Checkpoints
    variates: Variates
    """c_i of every client."""
    spool: Spool
    """Updates of the open round."""
    frozen: FrozenTensors = NONE_FROZEN
    """What clients get once."""
    in_process: bool = False
    """Whether the clients live and end with the server: they need no frames, and nothing outlives a crash."""
    buffers: Buffers = field(default_factory=lambda: Buffers(kept=2))
    """For x and the next x, where memory is not scarce: beside messages, a third one would be too much."""

    @cached_property
    def fingerprint(self) -> str:
        """Alike for models that exchange the same tensors."""
        return fingerprint(self.prepared.specs)

    @property
    def num_classes(self) -> int:
        """Classes that the model tells apart."""
        return self.prepared.model.num_classes

    @cached_property
    def classes(self) -> TensorClasses:
        """What is done with each tensor."""
        config, prepared = self.config, self.prepared
        return config.tensor_classes(config.algorithm, prepared.specs, prepared.classifier)

    @cached_property
    def _model_bytes(self) -> int:
        return self.layout.part(Purpose.MODEL, Purpose.BUFFER).num_bytes

    @property
    def layout(self) -> Layout:
        """Of x, the buffers and c."""
        return self.down.layout

    @property
    def algorithm(self) -> Algorithm:
        """What clients and server do otherwise than FedAvg."""
        return ALGORITHMS[self.config.algorithm]

    def allocate(self, layout: Layout) -> Flat:
        """Memory for the next x, buffers and c."""
        return self.buffers.take(layout) if self.in_process else layout.allocate()

    async def aside(self, work: Callable[..., T], *arguments: Any) -> T:
        """Does work on the model in a thread, unless it is so small that changing threads takes longer."""
        if self.layout.num_bytes <= SMALL_BYTES:
            return work(*arguments)
        return await asyncio.to_thread(work, *arguments)

    async def sync(self, written: Iterable[Path]) -> None:
        """Has files and folders on disk, if there is anybody who would go on with them."""
        if not self.in_process:
            await asyncio.to_thread(sync, written)

    @property
    def adapts(self) -> bool:
        """Whether S_svr changes from round to round."""
        return self.config.svr_budget > 0

    @property
    def svr(self) -> tuple[str, ...]:
        """The names of S_svr."""
        return tuple(self.layout.specs[k].name for k in self.layout.indices(Purpose.CONTROL))

    def reducing(self, choice: Choice) -> Run:
        """The run with another S_svr. Variates are of it from now on, updates once a round of it opens."""
        layout = self.layout.reducing(choice.since)
        self.variates.lay_out(layout, choice.since)
        down, up = encodings(self.config, layout)
        return replace(self, down=down, up=up)

    def model(self, flat: Flat) -> Flat:
        """x and the buffers of a broadcast, without c."""
        return flat[: self._model_bytes]

    def record(self, members: Iterable[Member], example_limit: int | None) -> RunRecord:
        """config.json, now that clients have seats."""
        histograms = self.prepared.histograms
        return RunRecord.of(
            self.config.as_dict(),
            run_id=self.id,
            fingerprint=self.fingerprint,
            num_classes=self.prepared.model.num_classes,
            svr_names=self.svr,
            personal_names=self.classes.names(TensorClass.PERSONAL),
            frozen_names=self.classes.names(TensorClass.FROZEN),
            frozen_sha256=self.frozen.digest,
            init_sha256=self.prepared.init_digest,
            class_names=self.prepared.class_names,
            example_limit=example_limit,
            clients=[
                Seat(
                    name=member.name,
                    index=member.index,
                    examples=member.examples,
                    # What a client's own data look like is nobody's business but its own.
                    classes=histograms[member.index] if member.shard is not None else None,
                    evicted_in=member.evicted_in,
                )
                for member in members
            ],
        )

    def rules(
        self,
        r: int,
        total_examples: int,
        example_limit: int | None,
        num_clients: int,
        strikes: Mapping[int, int],
    ) -> Rules:
        """The rules of a round; `total_examples` are those of all N clients when it is opened."""
        return replace(
            rules_of(self.config, r, self.prepared.augment, total_examples),
            example_limit=float(example_limit or 0),
            num_clients=num_clients,
            on_probation=tuple(sorted(on_probation(strikes))),
            evaluate=self.asks_sites_after(r - 1),
        )

    def evaluates(self, r: int) -> bool:
        """Whether x is evaluated after this round; after the last one it always is, if there are data.

        It never is where tensors are personal: x has no value for them, and first values say nothing.
        """
        return not (self.config.has_task or self.config.personal) and self._is_due(r)

    def evaluates_before_the_end(self, done: int) -> bool:
        """Whether x is evaluated after any round but the last, of those that are not done."""
        return any(self.evaluates(r) for r in range(done + 1, self.config.rounds))

    def asks_sites_after(self, r: int) -> bool:
        """Whether clients evaluate the x that this round leaves; they do it as the next one begins."""
        return r > 0 and self.sites_evaluate and self._is_due(r)

    @property
    def sites_evaluate(self) -> bool:
        """Whether clients evaluate x: where the server has no data, and counts are not too many."""
        together = self.config.num_clients * self.num_classes**2
        return self.config.sites_evaluate and together <= MAX_TOGETHER

    def _is_due(self, r: int) -> bool:
        every = self.config.eval_every
        return r == self.config.rounds or bool(every and r % every == 0)


def encodings(config: RunConfig, layout: Layout) -> tuple[Encoding, Encoding]:
    """How x and c travel, and how updates do."""
    return downward(layout, config.codecs), rules_of(config, 1, False, 0).update_encoding(layout)


def rules_of(config: RunConfig, r: int, augment: bool, total_examples: int) -> Rules:
    """What holds in round r. A rule that is a setting of the same name needs no line here."""
    settings = {rule.name: getattr(config, rule.name) for rule in fields(Rules) if hasattr(config, rule.name)}
    codecs = config.codecs
    return Rules(
        **settings
        | {
            "round": r,
            "local_epochs": None if config.local_steps is not None else config.local_epochs or 1,
            "eta_l": step_size(config.schedule, config.eta_l, r, config.rounds),
            "augment": augment,
            "update_codec": codecs.up,
            "control_codec": codecs.control,
            "derived": config.variates == "derived",
            "total_examples": float(total_examples),
        }
    )
