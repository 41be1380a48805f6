"""Data sets as plain arrays: images, labels, and how to bring images to the scale a model wants.

Built in is `digits`: 1,797 handwritten digits of 8x8 pixels (E. Alpaydin and C. Kaynak, Optical Recognition
of Handwritten Digits, UCI Machine Learning Repository, CC BY 4.0, in the selection that scikit-learn ships).
Any other data come from a factory `module:factory` with `factory(split) -> (images, labels)`, split "train"
or "test".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common import plugin
from common.errors import ConfigError, DataError

Images = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]

SPLITS = ("train", "test")
IMAGE_DTYPES = ("uint8", "float32", "float64")
MAX_CLASSES = 100_000


@dataclass(frozen=True)
class Dataset:
    """One split. uint8 images are scaled and normalised when used; others are taken as they are."""

    name: str
    images: Images
    labels: Labels
    mean: tuple[float, ...] = (0.0,)
    """Per channel, of images scaled to 0..1; only for uint8."""
    std: tuple[float, ...] = (1.0,)
    augment: bool = False
    """Whether random flip and crop keep the labels true, so that they are on unless the user says no."""

    @property
    def num_classes(self) -> int:
        """Highest label plus one."""
        return int(self.labels.max()) + 1

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.images.shape[1:])

    @property
    def model_dtype(self) -> str:
        """What the model's parameters must be to take these images."""
        return "float32" if self.images.dtype == np.uint8 else str(self.images.dtype)

    def subset(self, indices: npt.NDArray[np.int64]) -> Dataset:
        """Only these examples."""
        return Dataset(
            self.name, self.images[indices], self.labels[indices], self.mean, self.std, self.augment
        )


def _digits(split: str) -> Dataset:
    with np.load(Path(__file__).parent / "data" / "digits.npz", allow_pickle=False) as stored:
        images, labels = stored["images"], stored["labels"]
    order = np.random.RandomState(0).permutation(len(labels))
    chosen = order[:1437] if split == "train" else order[1437:]
    # The scanner's 17 grey levels, spread over a byte.
    pixels = (images[chosen] * 15)[:, None, :, :]
    return Dataset("digits", pixels, labels[chosen].astype(np.int64), mean=(0.2874,), std=(0.3538,))


DATASETS: dict[str, Callable[[str], Dataset]] = {"digits": _digits}


def load(name: str, split: str) -> Dataset:
    """One split of a built-in or plugged-in data set, checked."""
    require_known(name)
    if plugin.is_plugin(name):
        return _from_factory(name, split)
    return DATASETS[name](split)


def require_known(name: str) -> None:
    """Raises for a name that is neither built in nor module:factory."""
    if name not in DATASETS and not plugin.is_plugin(name):
        raise ConfigError(f"unknown data set {name!r}; choose {', '.join(DATASETS)} or module:factory")


def _from_factory(name: str, split: str) -> Dataset:
    factory = plugin.load(name)
    try:
        images, labels = (np.asarray(part) for part in factory(split))
    except Exception as error:
        raise DataError(
            f"data set {name}: expected factory({split!r}) -> (images, labels), got {error!r}"
        ) from error
    if str(images.dtype) not in IMAGE_DTYPES:
        raise DataError(f"data set {name}: images must be {', '.join(IMAGE_DTYPES)}, got {images.dtype}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"data set {name}: labels must be a list of integers, got {labels.dtype} {labels.shape}"
        )
    if images.ndim < 2 or len(images) != len(labels) or not len(labels):
        raise DataError(f"data set {name}: {len(labels)} labels do not fit images of shape {images.shape}")
    if labels.min() < 0 or labels.max() >= MAX_CLASSES:
        got = f"{labels.min()} to {labels.max()}"
        raise DataError(f"data set {name}: labels must be from 0 to {MAX_CLASSES - 1}, got {got}")
    return Dataset(name, np.ascontiguousarray(images), labels.astype(np.int64))
