"""Objects of a program that a client takes part with: examples in memory, a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from common.data import datasets
from common.data.given import Examples, arrays
from common.events import Emit
from common.models.spec import ModelSpec
from fedclient.own_data import OwnData
from fedclient.run.prepare import Build

Model = nn.Module | Callable[[int], nn.Module]


class GivenExamples:
    """A client's own data that are in memory already."""

    def __init__(self, examples: Examples, class_names: Sequence[str] | None, emit: Emit) -> None:
        images, labels, *named = arrays(examples)
        named = [class_names] if class_names is not None else named
        self._dataset = datasets.from_arrays("the data given", (images, labels, *named), emit)

    @property
    def examples(self) -> int:
        """How many there are."""
        return len(self._dataset.labels)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of their classes; numbers where nobody has named them."""
        return self._dataset.class_names

    @property
    def class_counts(self) -> dict[str, int]:
        """How many examples each class has."""
        counts = np.bincount(self._dataset.labels, minlength=self._dataset.num_classes)
        return dict(zip(self._dataset.class_names, counts.tolist(), strict=True))

    def load(self, class_names: tuple[str, ...], image_shape: tuple[int, ...]) -> datasets.Dataset:
        """The same, with the labels of the run; images are resized where it has another size."""
        own = datasets.relabelled(self._dataset, class_names)
        images = len(image_shape) == len(own.image_shape) == 3
        return datasets.resized(own, (image_shape[1], image_shape[2])) if images else own


@dataclass(frozen=True)
class Given:
    """What takes the place of flags; None where the flags say it."""

    data: OwnData | None = None
    test: OwnData | None = None
    build: Build | None = None
    """Makes the model; what the server calls it is then a name and loads nothing."""


def builder(model: Model) -> Build:
    """What makes the model of a run. A module is copied, so that the caller's own stays as it is."""

    def build(spec: ModelSpec, seed: int) -> nn.Module:
        return copy.deepcopy(model) if isinstance(model, nn.Module) else model(spec.num_classes)

    return build
