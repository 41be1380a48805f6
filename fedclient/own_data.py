"""Data that a client brings along: a data set of its own, or pictures in folders."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from common.data import datasets
from common.data.partition_file import read_partition
from common.errors import ConfigError
from common.events import Emit


class OwnData(Protocol):
    """What a client knows of its data before it joins, and how it loads them for a run."""

    @property
    def examples(self) -> int:
        """How many there are."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Classes that occur."""

    @property
    def class_counts(self) -> dict[str, int]:
        """How many examples each class has."""

    def load(self, class_names: tuple[str, ...], image_shape: tuple[int, ...]) -> datasets.Dataset:
        """The data with the labels and the image size of a run."""


class OwnDataset:
    """A split of a data set, or a part of it."""

    def __init__(
        self,
        name: str,
        data_dir: str,
        shard: str | None,
        emit: Emit,
        partition: Path | None = None,
        split: str = "train",
    ) -> None:
        self._load = partial(datasets.load, name, split, data_dir)
        self._decodes = name == "imagefolder"
        """Pictures in folders are read at the size of a run; others are resized, and only those chosen."""
        train = self._load(emit=emit)
        self._chosen = np.arange(len(train.labels))
        if shard is not None:
            i, num_shards = _shard(shard, len(train.labels))
            self._chosen = self._chosen[i::num_shards]
            if partition is not None:
                self._chosen = read_partition(partition, num_shards, len(train.labels))[i]
        self._image_shape = train.image_shape
        self._class_names = train.class_names
        self._counts = np.bincount(train.labels[self._chosen], minlength=len(train.class_names))

    @property
    def examples(self) -> int:
        """How many there are."""
        return len(self._chosen)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Classes of the data set."""
        return self._class_names

    @property
    def class_counts(self) -> dict[str, int]:
        """How many of the chosen examples each class has."""
        return dict(zip(self._class_names, self._counts.tolist(), strict=True))

    def load(self, class_names: tuple[str, ...], image_shape: tuple[int, ...]) -> datasets.Dataset:
        """The data at the image size and with the labels of the run."""
        images = len(image_shape) == len(self._image_shape) == 3
        square = images and image_shape[1] == image_shape[2]
        anew = self._decodes and square and image_shape != self._image_shape
        train = self._load(image_shape[1]) if anew else self._load()
        own = datasets.relabelled(train.subset(self._chosen), class_names)
        return datasets.resized(own, (image_shape[1], image_shape[2])) if images else own


def _shard(text: str, num_examples: int) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not int(match[1]) < int(match[2]) <= num_examples:
        raise ConfigError(f"--shard must be I/N with I below N and N at most {num_examples}, got {text!r}")
    return int(match[1]), int(match[2])


class OwnPictures:
    """A folder of pictures, one folder per class."""

    def __init__(self, folder: Path, emit: Emit) -> None:
        from common.data import imagefolder

        self._pictures = imagefolder.readable(imagefolder.list_pictures(folder), emit)

    @property
    def examples(self) -> int:
        """How many there are."""
        return len(self._pictures)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the folders."""
        return tuple(sorted({name for name, _ in self._pictures}))

    @property
    def class_counts(self) -> dict[str, int]:
        """Pictures in each folder."""
        return dict(Counter(name for name, _ in self._pictures))

    def load(self, class_names: tuple[str, ...], image_shape: tuple[int, ...]) -> datasets.Dataset:
        """The pictures, decoded, with the labels of the run."""
        if len(image_shape) != 3:
            raise ConfigError(f"--data has pictures, but the run's examples have shape {image_shape}")
        return datasets.own_folder(self._pictures, class_names, image_shape)
