"""Broken examples are counted, named and left out; what is left of the same data is always the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import DataError
from common.events import Emit, ExamplesLeftOut

NAMED = 5
"""Broken examples that are told by name."""
AT_ONCE = 1000
Array = npt.NDArray[Any]


def tell_of_broken(bad: Sequence[str], examples: int, what: str, emit: Emit) -> None:
    """Tells of broken examples in one event; raises if there are no others."""
    if bad and len(bad) == examples:
        raise DataError(f"all {examples} are {what}, the first is {bad[0]}; nothing is left to learn from")
    if bad:
        emit(ExamplesLeftOut(left_out=len(bad), examples=examples, what=what, named=tuple(bad[:NAMED])))


def without_ragged(images: Any, labels: Any, emit: Emit) -> tuple[Array, Array]:
    """Examples as one array, without those that have another shape than most."""
    labels = np.asarray(labels)
    try:
        return np.asarray(images), labels
    except ValueError:
        arrays = [np.asarray(image) for image in images]
    if len(arrays) != len(labels):
        raise DataError(f"{len(labels)} labels do not fit {len(arrays)} images")
    usual, _ = Counter(array.shape for array in arrays).most_common(1)[0]
    good = [k for k, array in enumerate(arrays) if array.shape == usual]
    bad = [f"number {k} {array.shape}" for k, array in enumerate(arrays) if array.shape != usual]
    tell_of_broken(bad, len(arrays), f"examples that have another shape than {usual}", emit)
    return np.stack([arrays[k] for k in good]), labels[good]


def without_unfit(images: Array, labels: Array, emit: Emit) -> tuple[Array, Array]:
    """Without those that have numbers that are not finite, where there can be such."""
    if images.dtype.kind != "f":
        return images, labels
    blocks = (images[k : k + AT_ONCE] for k in range(0, len(images), AT_ONCE))
    good = np.concatenate([np.isfinite(block.reshape(len(block), -1)).all(axis=1) for block in blocks])
    if good.all():
        return images, labels
    bad = [f"number {k}" for k in np.flatnonzero(~good)]
    tell_of_broken(bad, len(images), "examples with numbers that are not finite", emit)
    return images[good], labels[good]
