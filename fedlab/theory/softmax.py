"""Softmax regression on the digits, split by Dirichlet(alpha), with L2 or with next to none."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from common.data import datasets
from common.errors import ConfigError
from fedlab.theory.problem import Float64
from fedserver.worker.partition import dirichlet_partition

ALPHA = 0.1
BATCH = 16
CLASSES = 10
SMALL = 1e-12
"""Norm of the gradient at which Newton's method has arrived."""
MOST_STEPS = 50
ROUNDING = 1e-12
"""Of values near 1, with room to spare."""
STRONG, VANISHING = 0.1, 1e-4
"""L2. Without any, part of the classes can be told apart without error and there is no minimum."""


class Softmax:
    """Mean cross-entropy of a linear classifier, plus l2/2 ||x||^2; x is its weight by class, then its bias.

    A vanishing l2 counts as none: mu = 0, which is true and leaves the theorem's general convex case.
    """

    def __init__(self, features: Float64, labels: Float64, l2: float, batch: int = BATCH) -> None:
        """Features, clients x examples x numbers; labels the same with a one in the example's class."""
        self.name = f"softmax, L2 {l2:g}"
        self.features, self.labels, self.l2, self.batch = features, labels, l2, batch
        self.num_clients, self.num_examples, self.num_features = features.shape
        self.num_classes = labels.shape[-1]
        ones = np.concatenate([features, np.ones((*features.shape[:2], 1))], axis=2)
        moments = np.swapaxes(ones, 1, 2) @ ones / self.num_examples
        # Boehning's bound: no Hessian is above the second moments, halved, for every class.
        self.beta = 0.5 * float(np.linalg.eigvalsh(moments)[:, -1].max()) + l2
        self.mu = l2 if l2 > VANISHING else 0.0
        self._ones = ones

    @cached_property
    def optimum(self) -> Float64:
        """By Newton's method; a step that goes up is halved."""
        x = np.zeros(self.num_classes * (self.num_features + 1))
        for _ in range(MOST_STEPS):
            gradient = self.gradients(np.broadcast_to(x, (1, self.num_clients, len(x))))[0].mean(0)
            if np.linalg.norm(gradient) < SMALL:
                return x
            step = np.linalg.solve(self._hessian(x), gradient)
            before = self.values(x[None])[0]
            while self.values((x - step)[None])[0] > before + ROUNDING:
                step = step / 2
            x = x - step
        raise ConfigError(f"no minimum of the softmax regression in {MOST_STEPS} steps; take other --clients")

    def gradients(self, y: Float64, random: np.random.Generator | None = None) -> Float64:
        """Over all examples of a client, or over a batch drawn with replacement."""
        features, labels = self.features, self.labels
        if random is not None:
            drawn = random.integers(self.num_examples, size=(self.num_clients, self.batch))
            features = np.take_along_axis(features, drawn[..., None], axis=1)
            labels = np.take_along_axis(labels, drawn[..., None], axis=1)
        off = _chances(self._scores(y, features)) - np.swapaxes(labels, -1, -2)
        weight = off @ features / features.shape[1]
        joined = np.concatenate([weight.reshape(*y.shape[:-1], -1), off.mean(-1)], axis=-1)
        return np.asarray(joined + self.l2 * y)

    def values(self, x: Float64) -> Float64:
        """f(x) by lane."""
        lanes = np.broadcast_to(x[:, None, :], (len(x), self.num_clients, x.shape[1]))
        scores = self._scores(lanes, self.features)
        top = scores.max(-2)
        log_sum = top + np.log(np.exp(scores - top[..., None, :]).sum(-2))
        losses = (log_sum - (scores * np.swapaxes(self.labels, -1, -2)).sum(-2)).mean((1, 2))
        return np.asarray(losses + 0.5 * self.l2 * np.square(x).sum(-1))

    def noise(self, x: Float64) -> float:
        """Of a batch: that of one example divided by their number."""
        lane = np.broadcast_to(x, (1, self.num_clients, len(x)))
        off = _chances(self._scores(lane, self.features))[0] - np.swapaxes(self.labels, -1, -2)
        squares = np.square(off).sum(-2) * (np.square(self.features).sum(-1) + 1)
        mean = self.gradients(lane)[0] - self.l2 * x
        return float((squares.mean(1) - np.square(mean).sum(-1)).max() / self.batch)

    def _scores(self, y: Float64, features: Float64) -> Float64:
        """Lanes x clients x classes x examples: sums over classes are fast along the last axis."""
        cut = self.num_classes * self.num_features
        weight = y[..., :cut].reshape(*y.shape[:-1], self.num_classes, self.num_features)
        return np.asarray(weight @ np.swapaxes(features, -1, -2) + y[..., cut:, None])

    def _hessian(self, x: Float64) -> Float64:
        lane = np.broadcast_to(x, (1, self.num_clients, len(x)))
        by_client = _chances(self._scores(lane, self.features))[0]
        chances = np.swapaxes(by_client, 1, 2).reshape(-1, self.num_classes)
        rows = self._ones.reshape(len(chances), -1)
        classes, numbers = self.num_classes, rows.shape[1]
        curvature = chances[:, :, None] * (np.eye(classes) - chances[:, None, :])
        blocks = np.empty((classes, numbers, classes, numbers))
        for a in range(classes):
            for b in range(classes):
                blocks[a, :, b, :] = (rows * curvature[:, a, b, None]).T @ rows / len(rows)
        flat = blocks.reshape(classes * numbers, -1)
        index = np.arange(classes * numbers).reshape(classes, numbers)
        order = np.concatenate([index[:, :-1].ravel(), index[:, -1]])
        return np.asarray(flat[np.ix_(order, order)] + self.l2 * np.eye(len(flat)))


def _chances(scores: Float64) -> Float64:
    powers = np.exp(scores - scores.max(-2, keepdims=True))
    return np.asarray(powers / powers.sum(-2, keepdims=True))


def digits(num_clients: int, seed: int, l2: float) -> Softmax:
    """The built-in digits, at 4x4 pixels of mean 0, split over clients of one size."""
    train = datasets.load("digits", "train", "")
    pixels = train.images.reshape(len(train.labels), 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16) / 255.0
    shards = dirichlet_partition(train.labels, num_clients, ALPHA, seed)
    features = np.stack([pixels[shard] - pixels.mean(0) for shard in shards])
    labels = np.stack([np.eye(CLASSES)[train.labels[shard]] for shard in shards])
    return Softmax(features, labels, l2)
