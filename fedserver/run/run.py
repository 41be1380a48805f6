"""A run whose model is built: what does not change any more, and where it is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from common.algorithms import ALGORITHMS
from common.algorithms.base import Algorithm
from common.algorithms.schedule import step_size
from common.records.run import RunRecord, Seat
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat, Layout, Purpose, fingerprint
from common.wire.encoding import Encoding
from fedserver.config import RunConfig
from fedserver.run.seats import Member
from fedserver.store.checkpoints import Checkpoints
from fedserver.store.run_dir import RunDir
from fedserver.store.spool import Spool
from fedserver.store.variates import Variates
from fedserver.worker.messages import Prepared


@dataclass(frozen=True)
class Run:
    """The settings, the model and the stores of a run that clients can join."""

    id: str
    config: RunConfig
    """With N as it is, also where it was not given."""
    prepared: Prepared
    down: Encoding
    """How x and c travel."""
    update_reader: UpdateReader
    """How updates travel and are read."""
    run_dir: RunDir
    checkpoints: Checkpoints
    variates: Variates
    """c_i of every client."""
    spool: Spool
    """Updates of the open round."""

    @cached_property
    def fingerprint(self) -> str:
        """Alike for models that exchange the same tensors."""
        return fingerprint(self.prepared.specs)

    @property
    def layout(self) -> Layout:
        """Of x, the buffers and c."""
        return self.down.layout

    @property
    def algorithm(self) -> Algorithm:
        """What clients and server do otherwise than FedAvg."""
        return ALGORITHMS[self.config.algorithm]

    def model(self, flat: Flat) -> Flat:
        """x and the buffers of a broadcast, without c."""
        return flat[: len(self.prepared.x0)]

    def record(self, members: Iterable[Member]) -> RunRecord:
        """config.json, now that clients have seats."""
        histograms = self.prepared.histograms
        return RunRecord.of(
            self.config.as_dict(),
            run_id=self.id,
            fingerprint=self.fingerprint,
            num_classes=self.prepared.model.num_classes,
            svr_names=[self.layout.specs[k].name for k in self.layout.indices(Purpose.CONTROL)],
            class_names=self.prepared.class_names,
            clients=[
                Seat(
                    name=member.name,
                    index=member.index,
                    examples=member.examples,
                    # What a client's own data look like is nobody's business but its own.
                    classes=histograms[member.index] if member.shard is not None else None,
                )
                for member in members
            ],
        )

    def eta_l(self, r: int) -> float:
        """The local step size of a round."""
        return step_size(self.config.schedule, self.config.eta_l, r, self.config.rounds)

    def evaluates(self, r: int) -> bool:
        """Whether x is evaluated after this round; after the last one it always is."""
        every = self.config.eval_every
        return r == self.config.rounds or bool(every and r % every == 0)
