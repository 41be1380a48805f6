"""Which examples a client trains on: the split of its shard, and the batches of every step.

Seed, round and client alone decide, so that a round that is trained again is the same round.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from common import seeds
from common.data.batches import Batches
from common.data.datasets import Labels
from common.data.held_out import split, stratified
from common.server_step.rules import Rules
from fedclient.training.augment import Augmenter, drawn


class Minibatches:
    """Draws the batches of a client's rounds."""

    def __init__(self, batches: Batches, seed: int, index: int, *, by_class: bool = False) -> None:
        """`by_class`: what is held out has as much of each class as of all."""
        self._batches = batches
        self._by_class = by_class
        self._seed = seed
        self._index = index
        self._augmenter: Augmenter | None = None

    def split(self, rules: Rules) -> tuple[Labels, Labels]:
        """Examples to train on, and examples to validate on: the same in every round."""
        n = len(self._batches)
        held_out = rules.held_out(n)
        if held_out and self._by_class:
            random = seeds.stream(self._seed, seeds.VALIDATION, self._index)
            return stratified(self._batches.labels.cpu().numpy(), held_out, random)
        return split(n, held_out, self._seed, self._index)

    def work(self, rules: Rules) -> tuple[int, int]:
        """How many steps a round has, and how many examples are in each."""
        n = len(self._batches)
        return rules.steps(n), rules.batch(n - rules.held_out(n))

    def per_epoch(self, rules: Rules) -> int:
        """Steps after which every example has been seen."""
        n = len(self._batches) - rules.held_out(len(self._batches))
        return n // rules.batch(n)

    def draw(self, rules: Rules, after: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (B, ...) as the model takes them, and labels (B,), of every step of a round `after` some."""
        if not rules.augment:
            yield from map(self._batches.batch, islice(self.indices(rules), after, None))
            return
        crops = seeds.stream(self._seed, seeds.AUGMENT, rules.round, self._index)
        self._augmenter = self._augmenter or Augmenter(self._batches.images)
        for k, indices in enumerate(self.indices(rules)):
            if k < after:
                drawn(len(indices), crops)
                continue
            images = self._batches.scaled(self._augmenter.batch(indices, crops))
            yield images, self._batches.labels[indices]

    def indices(self, rules: Rules) -> Iterator[Tensor]:
        """Batches of a new permutation each epoch; a last batch that would be smaller is left out.

        A shard smaller than a batch is one batch, so that every client takes at least one step.
        """
        own = self.split(rules)[0]
        n = len(own)
        size = rules.batch(n)
        per_epoch = n // size
        random = seeds.stream(self._seed, seeds.BATCHES, rules.round, self._index)
        order = np.arange(n)
        for k in range(rules.steps(len(self._batches))):
            at = k % per_epoch
            if at == 0 and size < n:
                order = random.permutation(n)
            yield torch.from_numpy(own[order[at * size : (at + 1) * size]])
