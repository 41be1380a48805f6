"""The rules of one round, as its header carries them: for the server, for clients, for a replay.

    RunConfig --> Rules --to_header--> RoundHeader --from_header--> Rules     (client, fedwire replay)

What the header says of one client (its manifest, its counted round) is not part of them. A field of the
header that is a rule is written and read in this file and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.algorithms import ALGORITHMS
from common.algorithms.base import Algorithm
from common.algorithms.features import algorithm_in, joined, unknown
from common.data.held_out import held_out_count
from common.errors import ConfigError, WireError
from common.server_step.local_rules import PLACES, LocalRules
from common.server_step.robust import Robustness
from common.tensors.layout import Layout, Purpose
from common.wire.codec_choice import FOR_ALL, is_codec
from common.wire.encoding import Encoding, upward
from fedpvr.v1 import federation_pb2 as pb

WEIGHTINGS = ("uniform", "examples")
_ALIKE = (
    *("round", "rounds", "eta_l", "momentum", "weight_decay", "augment", "validation", "prox_weight"),
    *("derived", "num_clients", "eta_g", "weighting", "warm_variates", "gradient_only", "record_drift"),
    *("evaluate", "evaluation_only", "canary"),
)
"""Rules that a header has as they are."""


@dataclass(frozen=True, kw_only=True)
class Rules(LocalRules):
    """Everything of a round that its clients and the server's step compute with."""

    round: int
    """r, from 1."""
    rounds: int
    """R."""
    local_epochs: int | None = None
    """E; None where the number of steps is given."""
    local_steps: int | None = None
    """K."""
    batch_size: int | None = None
    """None: the whole shard in every step."""
    augment: bool = False
    validation: float = 0.0
    """Share of its shard that a client keeps for validation."""
    algorithm: str
    prox_weight: float = 0.0
    """Weight of y_i - x in the local gradient."""
    update_codec: str = "fp32"
    control_codec: str = "fp32"
    derived: bool = False
    """The server computes c_i from y_i, and clients compute c where they can."""
    num_clients: int
    """N."""
    eta_g: float = 1.0
    weighting: str = "uniform"
    total_examples: float = 0.0
    """Of all N clients; 0 where the header does not say."""
    example_limit: float = 0.0
    """Not 0: a client counts with this many examples at the most."""
    aggregation: str = "mean"
    norm_bound: float | None = None
    svr_budget: float = 0.0
    """Not 0: S_svr changes with what is measured, and has at most this share of the bytes of x."""
    on_probation: tuple[int, ...] = ()
    """Indices of clients of whose updates nothing counts, because earlier ones were far too large."""
    warm_variates: bool = False
    """c_i starts as the client's gradient at the first x, which the server has."""
    gradient_only: bool = False
    """Before round 1: clients answer with that gradient, and do not train."""
    record_drift: bool = False
    """Clients tell how far they went, and how much their gradients differed from step to step."""
    evaluate: bool = False
    """Clients evaluate x before they train, on data of their own."""
    evaluation_only: bool = False
    """After the last round: they do nothing else."""
    canary: bool = False
    """Whether it is a rehearsal, of which nothing counts."""

    @property
    def method(self) -> Algorithm:
        """What the algorithm of this name does."""
        return ALGORITHMS[self.algorithm]

    @property
    def robustness(self) -> Robustness:
        """Which updates count, and how they are put together; raises for a rule that is not known."""
        return Robustness(self.aggregation, self.norm_bound)

    def step_sum(self, steps: int) -> float:
        """Sum of the sizes of a client's K_i local steps."""
        return steps * self.eta_l

    def outside_step_sum(self, name: str, steps: int) -> float:
        """What the weights of a client's K_i gradients in x - y_i add up to, for a name outside S_svr."""
        return self.effective_steps(name, steps, reduced=False) * self.eta_l

    def variate_step_sum(self, name: str, steps: int) -> float:
        """What x - y_i of a parameter in S_svr is divided by, so that a mean direction comes of it."""
        return self.effective_steps(name, steps, reduced=True) * self.eta_l

    def held_out(self, examples: int) -> int:
        """Examples that a client of so many keeps for validation; it trains on one at least."""
        return held_out_count(self.validation, examples)

    def batch(self, examples: int) -> int:
        """Examples in each step of a client that trains on so many."""
        return examples if self.batch_size is None else min(self.batch_size, examples)

    def steps(self, examples: int) -> int:
        """K_i, the local steps of a client that has so many examples."""
        if self.gradient_only:
            return 0
        if self.local_steps is not None:
            return self.local_steps
        train = examples - self.held_out(examples)
        return (self.local_epochs or 1) * (train // self.batch(train))

    def client_weight(self, examples: int) -> float:
        """What a client of so many examples counts in c, the mean of all c_i."""
        if self.weighting != "examples":
            return 1.0
        return min(float(examples), self.example_limit) if self.example_limit else float(examples)

    def weight(self, examples: int, step_sum: float) -> float:
        """What an update counts in the mean of the y_i."""
        return self.method.weight(self.client_weight(examples), step_sum)

    @property
    def total_weight(self) -> float:
        """What all N clients count in c together, whether they take part or not."""
        return self.total_examples if self.weighting == "examples" else float(self.num_clients)

    def update_encoding(self, layout: Layout) -> Encoding:
        """How an update travels; `layout` is that of x, the buffers and c."""
        sent = layout.part(Purpose.MODEL, Purpose.BUFFER) if self.derived else layout
        if self.gradient_only:
            sent = layout.part(Purpose.CONTROL)
        return upward(sent, self.update_codec, self.control_codec)

    @property
    def features(self) -> tuple[str, ...]:
        """What a client has to know beyond the first release, by name."""
        asked = {"warm-variates": self.warm_variates, "svr-auto": self.svr_budget}
        return (*self.local_features, *(name for name, wanted in asked.items() if wanted))

    def require_known_step(self) -> None:
        """Raises ConfigError unless the server's step is known: clients do without, a replay does not."""
        if self.weighting not in WEIGHTINGS:
            raise ConfigError(f"weights are one of {', '.join(WEIGHTINGS)}, got {self.weighting!r}")
        if not self.total_weight > 0:
            raise ConfigError(
                "the header does not say how many clients, or examples of all clients, there are"
            )
        self.robustness.center()

    def to_header(self) -> pb.RoundHeader:
        """The rules as a header has them; what is usual is left out."""
        header = pb.RoundHeader(
            batch_size=self.batch_size or 0,
            algorithm=joined(self.algorithm, self.features),
            momentum_on=self.momentum_on,
            weight_decay_on=_unless(PLACES[0], self.weight_decay_on),
            clip_norm=self.clip_norm or 0.0,
            clip_on=_unless(PLACES[0], self.clip_on),
            update_codec=_unless("fp32", self.update_codec),
            control_codec=_unless("fp32", self.control_codec),
            total_examples=self.total_examples if self.weighting == "examples" else 0.0,
            example_limit=self.example_limit if self.weighting == "examples" else 0.0,
            aggregation=_unless("mean", self.aggregation),
            norm_bound=self.norm_bound or 0.0,
            svr_budget=self.svr_budget,
            on_probation=self.on_probation,
        )
        for name in _ALIKE:
            setattr(header, name, getattr(self, name))
        if self.local_steps is not None:
            header.local_steps = self.local_steps
        else:
            header.local_epochs = self.local_epochs or 1
        return header

    @classmethod
    def from_header(cls, header: pb.RoundHeader) -> Rules:
        """The rules in a header that came from a peer.

        Raises WrongRunError for an algorithm or a codec that this release does not know, and WireError for
        numbers that no round can have.
        """
        _require_sense(header)
        steps = header.WhichOneof("work") == "local_steps"
        found = cls(
            local_epochs=None if steps else header.local_epochs,
            local_steps=header.local_steps if steps else None,
            batch_size=header.batch_size or None,
            algorithm=algorithm_in(header.algorithm),
            momentum_on=tuple(header.momentum_on),
            weight_decay_on=header.weight_decay_on or PLACES[0],
            clip_norm=header.clip_norm or None,
            clip_on=header.clip_on or PLACES[0],
            update_codec=header.update_codec or "fp32",
            control_codec=header.control_codec or "fp32",
            total_examples=header.total_examples,
            example_limit=header.example_limit,
            aggregation=header.aggregation or "mean",
            norm_bound=header.norm_bound or None,
            svr_budget=header.svr_budget,
            on_probation=tuple(header.on_probation),
            **{name: getattr(header, name) for name in _ALIKE},
        )
        found.require_sense()
        return found


def _unless(usual: str, value: str) -> str:
    """What is usual takes no bytes."""
    return "" if value == usual else value


def _require_sense(header: pb.RoundHeader) -> None:
    for name in (header.update_codec or "fp32", header.control_codec or "fp32"):
        if not is_codec(name):
            raise unknown("codec", name, FOR_ALL)
    if header.round < 1 or not (header.local_epochs or header.local_steps):
        raise WireError.malformed("a round has a number, and epochs or steps, of at least 1")
    if not 0 <= header.validation < 1:
        raise WireError.malformed(f"validation must be from 0 to below 1, got {header.validation}")
    for name in ("prox_weight", "eta_g", "total_examples", "example_limit", "norm_bound", "svr_budget"):
        if not 0 <= getattr(header, name) < math.inf:
            raise WireError.malformed(f"{name} must be finite and not negative, got {getattr(header, name)}")
