"""What a round asks of a client, and what comes out of it. Plain values, without torch.

They hold large arrays, so two of them are equal only if they are the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.algorithms.base import Algorithm
from common.metrics.drift import ClientDrift
from common.records.sites import SiteCounts
from common.server_step.rules import Rules
from common.tensors.layout import NOTHING, Flat, Layout, Purpose, TensorSpec
from common.wire.encoding import Encoding


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What a round asks of a client."""

    rules: Rules
    layout: Layout
    """Of `broadcast`: the model's tensors, then c."""
    broadcast: Flat
    """x and c."""
    encoding: Encoding
    """How the update travels."""
    room: Flat | None = None
    """Memory for y_i, as large as `broadcast` or larger, that opens with x; None: to be found."""
    personal: Layout = NOTHING
    """Tensors that the client trains and does not send."""

    @property
    def round(self) -> int:
        """r."""
        return self.rules.round

    @property
    def shown_round(self) -> int:
        """r as people are told of it: 0 for what comes before round 1, whose number is that of no round."""
        return 0 if self.rules.canary or self.rules.gradient_only else self.round

    @property
    def algorithm(self) -> Algorithm:
        """What is done otherwise than FedAvg does it."""
        return self.rules.method

    @property
    def reduced(self) -> list[str]:
        """S_svr."""
        return [self.layout.specs[k].name for k in self.layout.indices(Purpose.CONTROL)]

    @property
    def sent_specs(self) -> tuple[TensorSpec, ...]:
        """The tensors of its update."""
        return self.encoding.layout.specs

    @property
    def sends_variate(self) -> bool:
        """Whether c_i is among them."""
        return bool(self.encoding.layout.indices(Purpose.CONTROL))

    @property
    def variates(self) -> Layout:
        """c_i, or FedDyn's l_i."""
        return self.algorithm.variates(self.layout)

    @property
    def state_layout(self) -> Layout:
        """What a client remembers from round to round.

        Its variate, what coding left out of updates, and its personal tensors, which are last.
        """
        return Layout([*self.variates.specs, *self.kept_besides_variates.specs])

    @property
    def kept_besides_variates(self) -> Layout:
        """What of it is the same in every round, whatever is in S_svr."""
        return Layout([*self.encoding.residuals.specs, *self.personal.specs])


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """What came out of a round."""

    round: int
    payload: Flat
    """y_i and, where it is sent, c_i, as they travel."""
    state: Flat
    """What the client is to remember until the next round, laid out as the task's `state_layout`."""
    steps: int
    loss: float
    validation_accuracy: float | None = None
    """Of x, on the part of the shard that is held out for validation."""
    seconds: float = 0.0
    """How long it took."""
    evaluation: SiteCounts | None = None
    """Of x, where the round asks for it."""
    drift: ClientDrift | None = None
    """How the steps went, where the round asks for it."""
