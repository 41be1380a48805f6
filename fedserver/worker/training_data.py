"""The training split at the server: its shards, and what of each its client trains on or keeps aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.data import datasets
from common.data.held_out import Indices, held_out_count, split
from common.data.partition_file import read_partition
from common.errors import ConfigError, DataError
from fedserver.config import RunConfig
from fedserver.worker.partition import dirichlet_partition
from fedserver.worker.task_run import require_images


def require_alike(train: datasets.Dataset, test: datasets.Dataset, augment: bool) -> None:
    """Raises unless a model that takes the training examples takes the test examples too."""
    if (train.image_shape, train.images.dtype) != (test.image_shape, test.images.dtype):
        raise DataError(
            f"data set {train.name}: training examples are {train.images.dtype} {train.image_shape}, "
            f"test examples {test.images.dtype} {test.image_shape}; both must be alike"
        )
    require_images(train.image_shape, augment)


def shards_of(config: RunConfig, labels: datasets.Labels) -> list[Indices]:
    """From a file, or drawn."""
    if config.partition is not None:
        return read_partition(Path(config.partition), config.num_clients, len(labels))
    equal = config.equal_shards
    return dirichlet_partition(labels, config.num_clients, config.alpha, config.seed, equal=equal)


@dataclass(frozen=True)
class Shares:
    """Indices into the training split, of all clients together."""

    trained_on: Indices
    held_out: Indices
    owners: Indices
    """The client of each that is held out, by index."""


def shares(config: RunConfig, shards: Sequence[Indices]) -> Shares:
    """What clients train on and keep aside, if each has its shard."""
    parts = [
        split(len(shard), held_out_count(config.validation, len(shard)), config.seed, i)
        for i, shard in enumerate(shards)
    ]
    kept = [shard[aside] for shard, (_, aside) in zip(shards, parts, strict=True)]
    return Shares(
        trained_on=np.concatenate([shard[own] for shard, (own, _) in zip(shards, parts, strict=True)]),
        held_out=np.concatenate(kept),
        owners=np.repeat(np.arange(len(kept)), list(map(len, kept))),
    )


def require_calibration(config: RunConfig, found: Shares) -> None:
    """Raises if prediction sets are to be calibrated on examples that are not there."""
    if config.calibration == "validation" and not len(found.held_out):
        raise ConfigError(
            f"--calibration validation: --validation {config.validation} keeps nothing of shards of "
            f"{len(found.trained_on) // config.num_clients} examples; give a larger share, or --calibration "
            "test-half"
        )
