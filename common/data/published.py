"""Published image data sets, read through torchvision and kept as plain arrays beside the originals.

The first use downloads what is missing where there is a network. Later uses map the arrays into memory, so
that a client holds its own shard and not the whole set, and does not load torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common import json_files
from common.atomic import replacing
from common.errors import DataError, StateError


@dataclass(frozen=True)
class Published:
    """One data set: its class in torchvision, its normalisation."""

    torchvision_name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


PUBLISHED = {
    "cifar10": Published("CIFAR10", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": Published("CIFAR100", (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "fashion-mnist": Published("FashionMNIST", (0.2860,), (0.3530,)),
}

_MAGIC = b"\x93NUMPY\x01\x00"
"""Version 1 of the format, as written here; a later one may announce a header of 4 GiB."""


@dataclass(frozen=True)
class Split:
    """One split as arrays."""

    images: npt.NDArray[np.uint8]
    """(n, channels, height, width)."""
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]


def read(name: str, split: str, data_dir: Path) -> Split:
    """One split, from the arrays kept before or through torchvision."""
    files = [data_dir / f"{name}-{split}-{part}" for part in ("images.npy", "labels.npy", "classes.json")]
    if not all(file.exists() for file in files):
        found = _through_torchvision(name, split, data_dir)
        # A data directory that cannot be written serves as well, only more slowly.
        with suppress(OSError):
            _save(files[0], found.images)
            _save(files[1], found.labels)
            json_files.write(files[2], found.class_names)
        return found
    try:
        images, labels = map(_mapped, files[:2])
        class_names = json_files.read(files[2], tuple[str, ...])
        good = images.dtype == np.uint8 and images.ndim == 4 and labels.shape == images.shape[:1]
        if not good:
            raise ValueError("expected pictures and as many labels")
        whole = np.array(labels, np.int64)
        if len(whole) and not 0 <= whole.min() <= whole.max() < len(class_names):
            raise ValueError(f"expected labels below {len(class_names)}")
    except (OSError, ValueError, StateError) as error:
        again = f"remove {name}-{split}-* in {data_dir} to make it again"
        raise DataError(f"{files[0]} is damaged, or what belongs to it is ({error}); {again}") from error
    return Split(images, whole, class_names)


def _mapped(file: Path) -> npt.NDArray[Any]:
    with file.open("rb") as stream:
        ours = stream.read(len(_MAGIC)) == _MAGIC
    try:
        array: npt.NDArray[Any] | None = np.load(file, mmap_mode="r", allow_pickle=False) if ours else None
    except Exception as error:  # numpy evaluates a literal in there, which can fail in any way.
        raise ValueError(f"{file}: {error!r}") from error
    if array is None or array.dtype.kind not in "iu":
        raise ValueError(f"{file} holds no array of whole numbers")
    return array


def _save(file: Path, array: Any) -> None:
    with replacing(file) as scratch, scratch.open("wb") as stream:
        np.save(stream, array)


def _through_torchvision(name: str, split: str, data_dir: Path) -> Split:
    from common.data.torchvision_import import torchvision_datasets

    build: Callable[..., Any] = getattr(torchvision_datasets(), PUBLISHED[name].torchvision_name)
    try:
        try:
            source = build(data_dir, train=split == "train", download=False)
        except RuntimeError:
            source = build(data_dir, train=split == "train", download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{name} is not in {data_dir} and cannot be downloaded ({error}); "
            "put the files that torchvision reads there, or name another --data-dir"
        ) from error
    images = np.asarray(source.data)
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return Split(
        np.ascontiguousarray(images), np.asarray(source.targets, np.int64), tuple(map(str, source.classes))
    )
