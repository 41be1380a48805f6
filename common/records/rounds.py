"""rounds.jsonl: what a run says of each round that has closed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from common import json_files
from common.records.base import Positive, Record
from common.records.sites import SitesRecord
from common.records.traffic import DirectionBytes

ROUNDS = "rounds.jsonl"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a model is on examples it was not trained on."""

    accuracy: float
    """Share of examples whose highest score is the right class."""
    loss: float | None
    """Mean cross-entropy; None where it is not finite."""
    class_accuracy: tuple[float | None, ...]
    """Accuracy on the examples of each class; None for a class without any."""
    probe_accuracy: float | None = None
    """The same as `accuracy` with a new classifier, trained on examples of all clients; if there is one."""


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """How long a round took."""

    round: float
    """From its opening to its close."""
    train: float
    """Of the client that trained longest."""
    step: float | None = None
    """The server's step, once all updates were there; part of `round`. Missing in earlier releases."""
    evaluate: float | None = None
    """The evaluation, which goes on beside the next round; left out where there was none."""


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Sizes of the control variates."""

    c: float | None
    """Euclidean norm of c; null where it is beyond all bounds."""
    clients: dict[str, float | None]
    """The same of every c_i that has counted, by client name. In format 1 by client index."""


@dataclass(frozen=True, kw_only=True)
class DriftRecord:
    """With --record-drift: the paper's E_r, sigma^2 and zeta^2 of a round, as far as they can be known."""

    clients: int
    """Updates that tell the numbers of `drift` and `noise`; others come from earlier releases."""
    drift: float | None
    """E_r: mean over these clients and their steps k = 1 ... K_i of ||y_i,k - x||^2."""
    drift_svr: float | None
    """The part of E_r on S_svr."""
    noise: float | None
    """Estimates sigma^2: mean over these clients of half the squared distance between the gradients of
    successive minibatches. It has the change of the full gradient over one step in it too, so it is too large
    by that, and not zero for full batches."""
    noise_svr: float | None
    """The part on S_svr."""
    zeta_svr: float | None
    """Estimates zeta^2 on S_svr: mean over the updates of ||c_i - mean c_i||^2, with the c_i of the round,
    which is the mean gradient of the client's steps; null where S_svr is empty."""
    zeta_sgd: float | None
    """Estimates zeta^2 of the other parameters (the paper's zeta_{1-p}): the same with x - y_i, divided by
    the sum of step sizes, for c_i. With FedProx or FedDyn this has their own terms in it. Null where S_svr is
    everything."""


@dataclass(frozen=True, kw_only=True)
class RoundRecord(Record):
    """A line of rounds.jsonl: one closed round."""

    round: Positive
    """Number of the round, from 1."""
    accuracy: float | None
    """Of the new x on the test set; null where it was not evaluated."""
    loss: float | None
    """Mean cross-entropy of the same; null also where it is not finite."""
    class_accuracy: tuple[float | None, ...] | None = None
    """Accuracy by class, null for a class without test examples; left out where x was not evaluated."""
    probe_accuracy: float | None = None
    """With --probe: accuracy on the test set of a logistic regression on x's features (what its classifier
    gets) that was trained on examples of all clients; left out where x was not evaluated."""
    head_gap: float | None = None
    """The same less `accuracy`: what a better classifier on the same features would win."""
    updates: Positive
    """Updates that entered x."""
    clipped: dict[str, float | None] | None = None
    """Clients whose update was too large to count in full, with its size in medians; if there are any."""
    uncounted: dict[str, str] | None = None
    """Of these, clients of whose update nothing is in x: `too large`, or `on probation` for earlier ones."""
    clients: tuple[str, ...] = ()
    """Names of the clients whose updates these are; empty in records of earlier releases."""
    absent: dict[str, str] = field(default_factory=dict)
    """Clients that were drawn and are not in x, and why."""
    train_loss: float
    """Mean over these updates of each client's mean training loss."""
    validation_accuracy: float | None
    """Mean over the clients that keep a validation share; null if none does."""
    drift: dict[str, float]
    """Drift diversity xi by parameter tensor (paper, eq. 2); one that did not move has no entry."""
    layer_drift: dict[str, float]
    """The same by layer."""
    eta_l: float
    """Local step size of the round."""
    bytes: DirectionBytes
    """Bytes of the round's messages, all clients together. By client and tensor they are in traffic.jsonl."""
    seconds: Seconds
    """How long it took."""
    cka: dict[str, float | None] | None = None
    """With --cka: similarity of the clients' models by layer, where x was evaluated."""
    norms: Norms
    """Sizes of the control variates after the round."""
    client_drift: DriftRecord | None = None
    """With --record-drift: E_r, sigma^2 and zeta^2 of the round."""
    svr: tuple[str, ...] | None = None
    """With --svr auto: names of the tensors that were in S_svr in this round."""
    sites: SitesRecord | None = None
    """The new x at the clients, on data of their own, where the server has none. `accuracy`, `loss` and
    `class_accuracy` are then those of all sites together."""

    def evaluated_at(self, sites: SitesRecord, together: Evaluation) -> RoundRecord:
        """The same round, now that clients have evaluated its x."""
        return replace(
            self,
            accuracy=together.accuracy,
            loss=together.loss,
            class_accuracy=together.class_accuracy,
            sites=sites,
        )

    def evaluated(self, found: Evaluation, seconds: float) -> RoundRecord:
        """The same round, now that its x is evaluated."""
        return replace(
            self,
            accuracy=found.accuracy,
            loss=found.loss,
            class_accuracy=found.class_accuracy,
            probe_accuracy=found.probe_accuracy,
            head_gap=None if found.probe_accuracy is None else found.probe_accuracy - found.accuracy,
            seconds=replace(self.seconds, evaluate=seconds),
        )


def read_rounds(run_dir: Path) -> list[RoundRecord]:
    """The closed rounds so far; none in a directory that has no such file."""
    path = run_dir / ROUNDS
    return list(json_files.read_lines(path, RoundRecord)) if path.exists() else []
