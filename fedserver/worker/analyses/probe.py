"""The head gap: how much better than the classifier of x one is that sees all clients' data at once.

A logistic regression on the features that x computes, trained on examples of all clients, is what x would be
with its classifier repaired and its features as they are. Its accuracy less that of x is what can be won.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from common import seeds
from common.data.batches import Batches
from common.data.held_out import Indices, stratified
from common.errors import ConfigError
from common.evaluate import BATCH, scores
from common.models.build import classifier_modules
from fedserver.worker.analyses.logistic import regression


def chosen(labels: Indices, pool: Indices, count: int, seed: int) -> Indices:
    """At most `count` examples of a pool, by index, with as much of each class as the pool has."""
    random = seeds.stream(seed, seeds.PROBE)
    return pool[stratified(labels[pool], min(count, len(pool)), random)[1]]


@contextmanager
def features_to(take: Callable[[Tensor], None], model: nn.Module) -> Iterator[None]:
    """Gives away, for every batch that the model is run on, what its classifier gets: (n, d).

    Of a classifier of several modules that is what the first of them to run gets.
    """
    parts, first = _parts(model), list[nn.Module]()

    def hook(module: nn.Module, inputs: tuple[object, ...]) -> None:
        first[:] = first or [module]
        if module is first[0] and inputs and isinstance(inputs[0], Tensor):
            # A copy, since a classifier may begin with something that works in place.
            take(inputs[0].flatten(1).to(torch.float64, copy=True))

    hooks = [part.register_forward_pre_hook(hook) for part in parts]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def _parts(model: nn.Module) -> list[nn.Module]:
    modules = dict(model.named_modules())
    return [modules[name] for name in classifier_modules(model) if name in modules]


def require_features(model: nn.Module, images: Tensor, name: str) -> None:
    """Raises for a model whose classifier, or what it gets, cannot be told."""
    found: list[Tensor] = []
    with features_to(found.append, model), torch.inference_mode():
        model.eval()(images)
    if len(found) != 1 or len(found[0]) != len(images):
        raise ConfigError(
            f"--probe needs what the classifier of model {name} gets, and the model does not tell: name the "
            "modules of the classifier in its attribute classifier_modules, or leave --probe out"
        )


class Probe:
    """Examples of all clients, on which a new classifier is trained for every x."""

    def __init__(self, pool: Batches, num_classes: int) -> None:
        self._pool = pool
        self._num_classes = num_classes

    def judged(self, model: nn.Module, test: Batches) -> tuple[Tensor, float | None]:
        """Class scores of the model on a test set, and the accuracy of the new classifier there.

        None for the latter if the model's features are not finite.
        """
        trained_on = self._features(model)
        found = regression(trained_on, self._pool.labels, self._num_classes)
        right: list[Tensor] = []

        def count(features: Tensor) -> None:
            if found is not None:
                right.append(found.scores(features).argmax(1))

        with features_to(count, model):
            own = scores(model, test, torch.arange(len(test)))
        if found is None:
            return own, None
        return own, (torch.cat(right) == test.labels).double().mean().item()

    @torch.inference_mode()
    def _features(self, model: nn.Module) -> Tensor:
        found: list[Tensor] = []
        with features_to(found.append, model):
            for part in torch.split(torch.arange(len(self._pool)), BATCH):
                model.eval()(self._pool.batch(part)[0])
        return torch.cat(found)
