"""What a client writes down as JSON in its state directory."""

from __future__ import annotations

from dataclasses import dataclass

from common.records.base import Count, Positive, Record

OWNER, KNOWN_RUN, BASELINE = "owner.json", "run.json", "baseline.json"


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
