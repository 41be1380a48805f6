"""A client's own data as a server gets to know them: their number rounded, small classes not named."""

from __future__ import annotations

import numpy as np

from common.data.datasets import Dataset
from fedclient.own_data import OwnData
from fedclient.policy.policy import Policy


class ToldData:
    """Other data, of which as many examples are used as are told."""

    def __init__(self, own: OwnData, policy: Policy) -> None:
        self._own = own
        self._policy = policy

    @property
    def examples(self) -> int:
        """A multiple of what the policy says."""
        return self._own.examples - self._own.examples % self._policy.round_examples

    @property
    def class_counts(self) -> dict[str, int]:
        """Those that may be told."""
        return {name: self._policy.told(count) for name, count in self._own.class_counts.items()}

    @property
    def class_names(self) -> tuple[str, ...]:
        """Without those that have too few examples."""
        counts = self._own.class_counts
        return tuple(
            name for name in self._own.class_names if counts.get(name, 0) >= self._policy.suppress_below
        )

    def load(self, class_names: tuple[str, ...], image_shape: tuple[int, ...]) -> Dataset:
        """All classes, and as many examples as are told, taken evenly."""
        dataset, chosen = self._own.load(class_names, image_shape), self.examples
        if chosen == len(dataset.labels):
            return dataset
        return dataset.subset(np.arange(chosen, dtype=np.int64) * len(dataset.labels) // chosen)
