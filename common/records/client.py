"""What a client writes down as JSON in its state directory."""

from __future__ import annotations

from dataclasses import dataclass

from common.records.base import Count, Positive, Record

OWNER, KNOWN_RUN, BASELINE = "owner.json", "run.json", "baseline.json"
OUTBOX, OUTBOX_HEAD = "outbox.jsonl", "outbox.head.json"
APPROVALS = "approvals"


@dataclass(frozen=True, kw_only=True)
class Owner(Record):
    """run-RUN_ID/owner.json: whose state the folder holds."""

    client: str
    """Name of the client."""
    model: str
    """Fingerprint of the model that it trains."""

    def described(self) -> str:
        """For an error message."""
        return f"client {self.client!r} with model {self.model[:12]}"


@dataclass(frozen=True, kw_only=True)
class KnownRun(Record):
    """run-RUN_ID/run.json: what the client was asked to train, for a baseline and a report afterwards."""

    run_id: str
    """Of the run."""
    index: Count
    """The client's seat."""
    num_clients: Positive
    """N."""
    seed: int
    """Fixes the first x, batches and crops."""
    model: str
    """Built-in name or module:factory."""
    num_classes: Positive
    """Classes that the model tells apart."""
    image_shape: tuple[Positive, ...]
    """Of an example."""
    dtype: str
    """Of the model."""
    width: float
    """Of the model."""
    fingerprint: str
    """Of the model's tensors."""
    class_names: tuple[str, ...]
    """By class number."""
    mean: tuple[float, ...]
    """Pictures are normalised with it."""
    std: tuple[float, ...]
    """The same."""
    rounds: Positive
    """R."""
    local_epochs: Positive | None
    """E; null where the number of steps is given."""
    local_steps: Positive | None
    """K."""
    batch_size: Positive | None
    """null for the whole shard in every step."""
    eta_l: float
    """Local step size of the first round that this process trained."""
    momentum: float
    """Outside S_svr."""
    augment: bool
    """Whether pictures are flipped and cropped."""
    validation: float
    """Share of the examples that is kept for validation."""
    update_bytes: Count
    """Bytes of the tensors of one update as they travel."""
    evaluates: bool = False
    """Whether x is evaluated here; the validation share is drawn by class then."""
    loss: str = ""
    """module:function of the client's, in place of the cross-entropy."""
    transform: str = ""
    """The same, for its examples."""


@dataclass(frozen=True, kw_only=True)
class Baseline(Record):
    """run-RUN_ID/baseline.json: how baseline.safetensors was trained, on the site's own data alone."""

    examples: Positive
    """Of the site, a validation share included."""
    rounds: Positive
    """As many as the run has."""
    steps: Positive
    """Of all rounds together."""
    loss: float
    """Mean training loss of the last round."""


@dataclass(frozen=True, kw_only=True)
class OutboxEntry(Record):
    """A line of outbox.jsonl: something leaves, or the server has answered for it."""

    number: Positive
    """Of the entry, from 1, without a gap."""
    time: str
    """UTC."""
    kind: str
    """`join`, `update`, `receipt`, or `key`: from here on another key signs, or none."""
    run: str = ""
    """Id of the run; empty for a `join`, whose receipt has it."""
    round: Count = 0
    """The round of an update, else 0."""
    update: str = ""
    """Id of the update; one that is sent again has the same."""
    tensors: Count = 0
    """How many leave."""
    names: tuple[str, ...] = ()
    """Of the tensors; empty where they are those of the entry before that has any."""
    bytes: Count = 0
    """Of what leaves, envelopes left out; of an upload that goes on, those that are left."""
    norm: float | None = None
    """Euclidean norm of y_i - x; missing where an earlier process has trained the update."""
    told: tuple[str, ...] = ()
    """What else is in the message."""
    receipt_of: Count = 0
    """Of a receipt: the entry that the server has answered for."""
    outcome: str = ""
    """Of a receipt: what the server said; of a key: which one signs now."""
    previous: str
    """`hash` of the entry before; zeros in the first."""
    hash: str = ""
    """SHA-256 of the entry without this key, as JSON with sorted keys and no blanks."""


@dataclass(frozen=True, kw_only=True)
class OutboxHead(Record):
    """outbox.head.json: how far outbox.jsonl goes, written after every entry."""

    number: Positive
    """Of the last entry."""
    hash: str
    """Of the last entry."""
    key: str = ""
    """The public half of the site's key, if it has one: DER in base64."""
    signature: str = ""
    """ECDSA with SHA-256 over `NUMBER HASH`, in base64, by that key."""


@dataclass(frozen=True, kw_only=True)
class AskedApproval(Record):
    """approvals/KIND.json: a kind of run that wants to be approved."""

    kind: str
    """What names it."""
    asked: str
    """When it was first asked for, UTC."""
    server: str
    """Who asked for it."""
    run: str
    """In which run."""
    described: str
    """What it is, for people."""
    tensors: tuple[str, ...]
    """Everything that would leave in each round."""


@dataclass(frozen=True, kw_only=True)
class GivenApproval(Record):
    """approvals/KIND.approved.json: it is approved."""

    kind: str
    """What names it."""
    approved: str
    """When, UTC."""
