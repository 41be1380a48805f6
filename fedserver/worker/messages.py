"""What the server and its worker process say to each other: JSON, and flat buffers beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from common.devices.names import CPU
from common.models.spec import ModelSpec
from common.records import form
from common.records.cka import Matrix
from common.records.conformal import ConformalRecord
from common.records.rounds import Evaluation
from common.tensors.layout import Flat, TensorSpec
from fedserver.config import RunConfig

MAX_CLIENTS = 10
"""Models compared at most; what is kept of each is a matrix per layer, images by images of a minibatch."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """What the worker has built: the model's tensors but for their values, and the shards."""

    model: ModelSpec
    specs: tuple[TensorSpec, ...]
    classifier: tuple[str, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shards: tuple[tuple[int, ...], ...]
    histograms: tuple[tuple[int, ...], ...]
    """Examples of each class in each shard."""
    augment: bool
    init_digest: str = ""
    """SHA-256 of the file that first values come from; empty where the seed alone makes them."""
    init_told: str = ""
    """What of the model that file has not, in words."""


@dataclass(frozen=True, kw_only=True)
class Prepared(Built):
    """The same, with the first values."""

    x0: Flat

    @classmethod
    def of(cls, built: Built, x0: Flat) -> Prepared:
        """What was built, with its first values."""
        return cls(**vars(built), x0=x0)

    def built(self) -> Built:
        """Without them."""
        return Built(**{each.name: getattr(self, each.name) for each in fields(Built)})


@dataclass(frozen=True, kw_only=True)
class CompareModels:
    """Asks for the similarity of client models."""

    updates: tuple[str, ...]
    """Files that open with the tensors of y_i."""
    num_images: int
    estimator: str

    @classmethod
    def of(cls, updates: Sequence[Path], num_images: int, estimator: str) -> CompareModels:
        """The question about these files, wherever the worker is."""
        paths = tuple(str(path.absolute()) for path in updates)
        return cls(updates=paths, num_images=num_images, estimator=estimator)


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """CKA between the models of clients, and what it was estimated on."""

    images: int
    minibatches: int
    layers: dict[str, Matrix]
    """By layer; a row and a column for each model, in the order of the files."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question, and whether a flat buffer follows it."""

    prepare: RunConfig | None = None
    x0: bool = False
    """Whether the first values are to follow what was built, for somebody who has no x yet."""
    device: str = CPU
    """Where models are evaluated, from this preparation on."""
    evaluate: bool = False
    conformal: tuple[int, ...] | None = None
    """The clients that have a shard, by index: what they keep aside can be calibrated on."""
    cka: CompareModels | None = None
    flat: bool = False


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error of the worker."""

    error: str
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to one question; x^0 follows what was built where it was asked for."""

    failure: Failure | None = None
    built: Built | None = None
    evaluation: Evaluation | None = None
    conformal: ConformalRecord | None = None
    similarity: Similarity | None = None


def encoded(message: Request | Reply) -> bytes:
    """A message as it travels."""
    return form.text(message).encode()


def request_of(data: bytes) -> Request:
    """A question as it has come."""
    return form.read(Request, json.loads(data))


def reply_of(data: bytes) -> Reply:
    """An answer as it has come."""
    return form.read(Reply, json.loads(data))
