"""Data sets as plain arrays: images, labels, and how to bring images to the scale a model wants.

Built in is `digits`: 1,797 handwritten digits of 8x8 pixels (E. Alpaydin and C. Kaynak, Optical Recognition
of Handwritten Digits, UCI Machine Learning Repository, CC BY 4.0, in the selection that scikit-learn ships).
Published sets come through torchvision, pictures of one's own from `imagefolder`, and any other data from a
factory `module:factory` with `factory(split) -> (images, labels)` or, if its classes have names,
`(images, labels, class_names)`, split "train" or "test".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common import plugin
from common.data import published
from common.data.broken import without_ragged, without_unfit
from common.data.names import DATASETS, INSTALLED, require_known
from common.errors import ConfigError, DataError, place_in_plugin
from common.events import Emit, Event, unheard
from common.names import class_number

Images = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]

IMAGE_DTYPES = ("uint8", "float32", "float64")
MAX_CLASSES = 100_000
FOLDER_SIZE = 32
"""Height and width of pictures from folders, unless --image-size says otherwise."""

assert set(DATASETS) == {"digits", *published.PUBLISHED, "imagefolder"}


@dataclass(frozen=True)
class Dataset:
    """One split. uint8 images are scaled and normalised when used; others are taken as they are."""

    name: str
    images: Images
    labels: Labels
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = (0.0,)
    """Per channel, of images scaled to 0..1; only for uint8."""
    std: tuple[float, ...] = (1.0,)
    augment: bool = False
    """Whether random flip and crop keep the labels true, so that they are on unless the user says no."""

    @property
    def num_classes(self) -> int:
        """Number of classes, whether or not each has examples here."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.images.shape[1:])

    @property
    def model_dtype(self) -> str:
        """What the model's parameters must be to take these images."""
        return "float32" if self.images.dtype == np.uint8 else str(self.images.dtype)

    def subset(self, indices: Labels) -> Dataset:
        """Only these examples."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])


def numbered(num_classes: int) -> tuple[str, ...]:
    """Class names where a data set has none."""
    return tuple(map(str, range(num_classes)))


def load(
    name: str, split: str, data_dir: str = "data", image_size: int | None = None, emit: Emit = unheard
) -> Dataset:
    """One split of a data set, checked; `image_size` makes images smaller (or larger)."""
    require_known(name)
    dataset, problems = _load(name, split, str(Path(data_dir).absolute()), image_size, str(Path.cwd()))
    for problem in problems:
        emit(problem)
    return dataset if image_size is None else resized(dataset, (image_size, image_size))


@lru_cache(maxsize=4)
def _load(
    name: str, split: str, data_dir: str, image_size: int | None, here: str
) -> tuple[Dataset, tuple[Event, ...]]:
    """A split, and what is to be told of it.

    Cached: the clients of a simulation all ask for the same. `here` is where plug-ins come from.
    """
    problems: list[Event] = []
    dataset = _read(name, split, data_dir, image_size, problems.append)
    return dataset, tuple(problems)


def forget() -> None:
    """Lets go of what was loaded for the clients of a simulation."""
    _load.cache_clear()


def _read(name: str, split: str, data_dir: str, image_size: int | None, emit: Emit) -> Dataset:
    if name not in DATASETS:
        return _from_factory(name, split, emit)
    if name == "digits":
        return _digits(split)
    if name == "imagefolder":
        return _folder(Path(data_dir), split, image_size or FOLDER_SIZE, emit)
    source = published.PUBLISHED[name]
    found = published.read(name, split, Path(data_dir))
    return Dataset(name, found.images, found.labels, found.class_names, source.mean, source.std, augment=True)


def count_pictures(data_dir: str, split: str) -> int:
    """How many pictures in folders there are, without reading them."""
    from common.data import imagefolder

    return len(imagefolder.list_pictures(Path(data_dir) / split))


def resized(dataset: Dataset, size: tuple[int, int]) -> Dataset:
    """The same images at another height and width, by averaging over areas."""
    if len(dataset.image_shape) != 3:
        raise ConfigError(
            f"--image-size needs images of shape CxHxW, {dataset.name} has {dataset.image_shape}"
        )
    if dataset.image_shape[1:] == size:
        return dataset
    import torch
    from torch.nn import functional as F

    images = np.empty((len(dataset.images), dataset.image_shape[0], *size), dataset.images.dtype)
    for start in range(0, len(images), 1000):
        block = torch.from_numpy(np.array(dataset.images[start : start + 1000]))
        small = F.adaptive_avg_pool2d(block if block.is_floating_point() else block.float(), size)
        images[start : start + 1000] = (small if block.is_floating_point() else small.round()).numpy()
    return replace(dataset, images=images)


def own_folder(
    pictures: list[tuple[str, Path]], class_names: tuple[str, ...], shape: tuple[int, ...]
) -> Dataset:
    """A client's own pictures, with the labels that the run gives to their classes."""
    from common.data import imagefolder

    own_names = tuple(sorted({name for name, _ in pictures}))
    labels = np.array([own_names.index(name) for name, _ in pictures], np.int64)
    images = imagefolder.decode([path for _, path in pictures], shape)
    return relabelled(Dataset("own pictures", images, labels, own_names, *_HALF, augment=True), class_names)


def relabelled(dataset: Dataset, class_names: tuple[str, ...]) -> Dataset:
    """The same examples with the labels that a run gives to their classes, which are matched by name."""
    numbers = [class_number(name, class_names) for name in dataset.class_names]
    for name, number in zip(dataset.class_names, numbers, strict=True):
        if number is None:
            raise DataError(
                f"{dataset.name} has class {name!r}, the run has {', '.join(class_names)}; "
                f"all of its own are {', '.join(dataset.class_names)}"
            )
    labels = np.array(numbers, np.int64)[dataset.labels]
    return replace(dataset, labels=labels, class_names=class_names)


_HALF = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
"""Normalisation of pictures whose statistics nobody knows."""


def _digits(split: str) -> Dataset:
    with np.load(Path(__file__).parent / "digits.npz", allow_pickle=False) as stored:
        images, labels = stored["images"], stored["labels"]
    order = np.random.RandomState(0).permutation(len(labels))
    chosen = order[:1437] if split == "train" else order[1437:]
    # The scanner's 17 grey levels, spread over a byte.
    pixels = (images[chosen] * 15)[:, None, :, :]
    return Dataset("digits", pixels, labels[chosen].astype(np.int64), numbered(10), (0.2874,), (0.3538,))


def _folder(data_dir: Path, split: str, size: int, emit: Emit) -> Dataset:
    from common.data import imagefolder

    pictures = {"train": imagefolder.list_pictures(data_dir / "train")}
    class_names = tuple(sorted({name for name, _ in pictures["train"]}))
    if len(class_names) < 2:
        raise DataError(
            f"{data_dir / 'train'} has one class only, {class_names[0]!r}; two are needed to learn from"
        )
    if split != "train":
        pictures[split] = imagefolder.list_pictures(data_dir / split)
        strange = sorted({name for name, _ in pictures[split]} - set(class_names))
        if strange:
            raise DataError(
                f"{data_dir / split} has class {strange[0]!r}, which {data_dir / 'train'} has not"
            )
    return own_folder(imagefolder.readable(pictures[split], emit), class_names, (3, size, size))


def _from_factory(name: str, split: str, emit: Emit) -> Dataset:
    factory = plugin.load(name, INSTALLED)
    try:
        return from_arrays(name, factory(split), emit)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"data set {name}: expected factory({split!r}) -> (images, labels), "
            f"got {error!r}{place_in_plugin(error)}"
        ) from error


def from_arrays(name: str, found: Sequence[Any], emit: Emit) -> Dataset:
    """A data set of (images, labels) or (images, labels, class_names), checked."""
    given, classes, *named = found
    try:
        images, labels = without_ragged(given, classes, emit)
    except DataError as error:
        raise DataError(f"data set {name}: {error}") from error
    names = tuple(map(str, *named)) if named else None
    if str(images.dtype) not in IMAGE_DTYPES:
        raise DataError(f"data set {name}: images must be {', '.join(IMAGE_DTYPES)}, got {images.dtype}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        got = f"{labels.dtype} {labels.shape}"
        raise DataError(f"data set {name}: labels must be a list of integers, got {got}")
    if images.ndim < 2 or len(images) != len(labels) or not len(labels):
        raise DataError(f"data set {name}: {len(labels)} labels do not fit images of shape {images.shape}")
    images, labels = without_unfit(images, labels, emit)
    if labels.min() < 0 or labels.max() >= MAX_CLASSES:
        got = f"{labels.min()} to {labels.max()}"
        raise DataError(f"data set {name}: labels must be from 0 to {MAX_CLASSES - 1}, got {got}")
    names = numbered(int(labels.max()) + 1) if names is None else names
    if len(names) <= labels.max() or len(set(names)) < len(names):
        got = f"{len(names)} for labels to {labels.max()}"
        raise DataError(f"data set {name}: every class needs a name of its own, got {got}")
    return Dataset(name, images, labels.astype(np.int64), names)
