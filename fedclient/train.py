"""Local training: K steps of partial variance reduction from x to y_i."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import seeds
from common.errors import FedError
from common.inputs import Inputs
from common.params import bind, tensor_view
from common.tensors import Flat, Layout, Purpose
from fedclient.augment import Augmenter
from fedclient.pvr import next_c_i, sgd_step, svr_step


class DivergedError(FedError):
    """Training left the finite numbers."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a round asks of a client."""

    round: int
    local_epochs: int | None
    local_steps: int | None
    batch_size: int | None
    """None: the whole shard in every step."""
    eta_l: float
    momentum: float
    augment: bool
    layout: Layout
    """Of both `down` and the update: the model's tensors, then c or c_i."""
    down: Flat
    """x and c."""


@dataclass(frozen=True)
class Update:
    """What a client hands in."""

    round: int
    up: Flat
    """y_i and c_i."""
    steps: int
    loss: float


class Trainer:
    """A model and a shard, ready for any round."""

    def __init__(self, model: nn.Module, inputs: Inputs, seed: int, index: int) -> None:
        self._model = model
        self._inputs = inputs
        self._seed = seed
        self._index = index
        self._augmenter: Augmenter | None = None

    @property
    def examples(self) -> int:
        """Size of the shard."""
        return len(self._inputs)

    def train(self, task: Task, c_i: Flat) -> Update:
        """One round: K_i steps from x, then the new c_i. `c_i` is laid out as the task's control tensors."""
        layout = task.layout
        up = layout.allocate()
        model_bytes = Layout(layout.part(Purpose.MODEL, Purpose.BUFFER).specs).num_bytes
        up[:model_bytes] = task.down[:model_bytes]
        y = _views(layout, up, Purpose.MODEL)
        bind(self._model, y | _views(layout, up, Purpose.BUFFER))
        c = _views(layout, task.down, Purpose.CONTROL)
        own = _views(layout.part(Purpose.CONTROL), c_i, Purpose.CONTROL)
        correction = {name: c[name] - own[name] for name in c}

        steps, loss = self._steps(task, correction)

        x = _views(layout, task.down, Purpose.MODEL)
        new = next_c_i(
            list(own.values()),
            list(c.values()),
            [x[n] for n in c],
            [y[n] for n in c],
            steps * task.eta_l,
        )
        for view, value in zip(_views(layout, up, Purpose.CONTROL).values(), new, strict=True):
            view.copy_(value)
        if not all(bool(torch.isfinite(tensor).all()) for tensor in [*y.values(), *new]):
            raise DivergedError(f"the model is not finite after {steps} steps; lower --eta-l")
        return Update(task.round, up, steps, loss)

    def _steps(self, task: Task, correction: dict[str, Tensor]) -> tuple[int, float]:
        parameters = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        names = [
            *(n for n in parameters if n in correction),
            *(n for n in parameters if n not in correction),
        ]
        split = sum(n in correction for n in parameters)
        trained = [parameters[n] for n in names]
        svr, sgd = [p.data for p in trained[:split]], [p.data for p in trained[split:]]
        corrections = [correction[n] for n in names[:split]]
        velocity = [torch.zeros_like(p) for p in sgd] if task.momentum else []
        torch.manual_seed(seeds.number(self._seed, seeds.DROPOUT, task.round, self._index))
        self._model.train()
        steps, total = 0, 0.0
        for images, labels in self._batches(task):
            loss = F.cross_entropy(self._model(images), labels)
            g = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
            svr_step(svr, g[:split], corrections, task.eta_l)
            sgd_step(sgd, g[split:], velocity, task.eta_l, task.momentum)
            steps += 1
            total += loss.item()
            if not math.isfinite(total):
                raise DivergedError(f"the loss is {loss.item()} at step {steps}; lower --eta-l")
        return steps, total / steps

    def _batches(self, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
        crops = seeds.stream(self._seed, seeds.AUGMENT, task.round, self._index)
        if task.augment and self._augmenter is None:
            self._augmenter = Augmenter(self._inputs.images)
        for indices in self._batch_indices(task):
            if task.augment and self._augmenter is not None:
                images = self._inputs.scaled(self._augmenter.batch(indices, crops))
                yield images, self._inputs.labels[indices]
            else:
                yield self._inputs.batch(indices)

    def _batch_indices(self, task: Task) -> Iterator[Tensor]:
        """Batches of a new permutation each epoch; a last batch that would be smaller is left out.

        A shard smaller than a batch is one batch, so that every client takes at least one step.
        """
        n = self.examples
        size = n if task.batch_size is None else min(task.batch_size, n)
        per_epoch = n // size
        steps = task.local_steps if task.local_steps is not None else (task.local_epochs or 1) * per_epoch
        random = seeds.stream(self._seed, seeds.BATCHES, task.round, self._index)
        order = np.arange(n)
        for step in range(steps):
            at = step % per_epoch
            if at == 0 and size < n:
                order = random.permutation(n)
            yield torch.from_numpy(order[at * size : (at + 1) * size])


def _views(layout: Layout, flat: Flat, purpose: Purpose) -> dict[str, Tensor]:
    return {layout.specs[k].name: tensor_view(layout, flat, k) for k in layout.indices(purpose)}
