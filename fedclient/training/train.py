"""Local training: K steps of partial variance reduction from x to y_i."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import seeds
from common.algorithms.base import Algorithm
from common.data.batches import Batches
from common.data.datasets import Labels
from common.errors import FedError
from common.evaluate import evaluate
from common.tensors.layout import Flat, Layout, Purpose
from common.tensors.torch_views import bind, tensor_view
from common.wire.encoding import Encoding
from fedclient.store.stored_update import StoredUpdate
from fedclient.training.augment import Augmenter
from fedclient.training.pvr import direction, momentum_step, step


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
    validation: float
    """Share of the shard that is kept for validation."""
    algorithm: Algorithm
    prox_weight: float
    """Weight of y_i - x in the local gradient."""
    layout: Layout
    """Of `down`: the model's tensors, then c."""
    down: Flat
    """x and c."""
    up: Encoding
    """How the update travels."""

    @property
    def variates(self) -> Layout:
        """c_i, or FedDyn's l_i."""
        return self.algorithm.variates(self.layout)

    @property
    def kept(self) -> Layout:
        """What a client keeps from round to round: its variate, and what coding left out of its updates."""
        return Layout([*self.variates.specs, *self.up.residuals.specs])


@dataclass(frozen=True)
class Update:
    """What a client hands in."""

    round: int
    up: Flat
    """y_i and, where it is sent, c_i, as they travel."""
    kept: Flat
    """What the client is to keep until the next round."""
    steps: int
    step_sum: float
    """Sum of the step sizes."""
    loss: float
    validation_accuracy: float | None = None
    """Of x, on the part of the shard that is kept for validation."""
    seconds: float = 0.0
    """How long it took."""

    def stored_update(self, encoding: Encoding) -> StoredUpdate:
        """What is handed in of it; `coding` is the task's."""
        return StoredUpdate(
            self.round, encoding, self.up, self.steps, self.loss, self.validation_accuracy, self.seconds
        )


class Trainer:
    """A model and a shard, ready for any round."""

    def __init__(self, model: nn.Module, batches: Batches, seed: int, index: int) -> None:
        self._model = model
        self._batches = batches
        self._seed = seed
        self._index = index
        self._augmenter: Augmenter | None = None

    @property
    def examples(self) -> int:
        """Size of the shard."""
        return len(self._batches)

    def train(self, task: Task, kept: Flat) -> Update:
        """One round: K_i steps from x. `kept` is laid out as `task.kept`, and so is what is kept after it."""
        started = time.monotonic()
        layout = task.layout
        values = layout.allocate()
        model_bytes = layout.part(Purpose.MODEL, Purpose.BUFFER).num_bytes
        values[:model_bytes] = task.down[:model_bytes]
        x, y = (_views(layout, flat, Purpose.MODEL) for flat in (task.down, values))
        device = self._batches.device
        trained = _on(device, y)
        bind(self._model, trained | _on(device, _views(layout, values, Purpose.BUFFER)))
        c = _views(layout, task.down, Purpose.CONTROL)
        new_kept = kept.copy()
        split = task.variates.num_bytes
        old, new = (_views(task.variates, flat[:split], Purpose.CLIENT_CONTROL) for flat in (kept, new_kept))
        correction = {name: task.algorithm.correction(value, c.get(name)) for name, value in old.items()}

        accuracy = self._validate(task)
        steps, loss = self._steps(task, _on(device, x), _on(device, correction), plain=set(c))

        for name, tensor in trained.items():
            if tensor is not y[name]:
                y[name].copy_(tensor)
        for name, view in _views(layout, values, Purpose.BUFFER).items():
            # A module may have put a new tensor in the place of the one it was bound to.
            view.copy_(self._model.get_buffer(name))
        _require_finite(y, steps)
        random = seeds.stream(self._seed, seeds.CODEC_UP, task.round, self._index)
        model = task.up.part(Purpose.MODEL, Purpose.BUFFER)
        sent = model.encode_in_place(values[:model_bytes], random, task.down[:model_bytes], new_kept[split:])
        # From here on y is what the server will see, and the variate follows from that.
        for name, value in old.items():
            new[name].copy_(
                task.algorithm.next_variate(
                    value, c.get(name), x[name], y[name], steps * task.eta_l, task.prox_weight
                )
            )
        _require_finite(new, steps)
        control = task.up.part(Purpose.CONTROL)
        if control.layout.specs:
            to_send = _views(layout, values, Purpose.CONTROL)
            for name, tensor in to_send.items():
                tensor.copy_(new[name])
            coded = control.encode_in_place(values[model_bytes:], random, None, None)
            for name, tensor in to_send.items():
                new[name].copy_(tensor)
            sent = values if task.up.plain else np.concatenate([sent, coded])
        seconds = time.monotonic() - started
        return Update(task.round, sent, new_kept, steps, steps * task.eta_l, loss, accuracy, seconds)

    def _kept_back(self, task: Task) -> tuple[Labels, Labels]:
        """Examples to train on and examples to validate on: the same split in every round."""
        order = seeds.stream(self._seed, seeds.VALIDATION, self._index).permutation(self.examples)
        kept = min(round(task.validation * self.examples), self.examples - 1)
        return (
            (np.sort(order[kept:]), np.sort(order[:kept])) if kept else (np.arange(self.examples), order[:0])
        )

    def _validate(self, task: Task) -> float | None:
        kept = self._kept_back(task)[1]
        return evaluate(self._model, self._batches, torch.from_numpy(kept)).accuracy if len(kept) else None

    def _steps(
        self, task: Task, x: dict[str, Tensor], correction: dict[str, Tensor], plain: set[str]
    ) -> tuple[int, float]:
        """Trains in place; names in `plain` (S_svr) never get momentum."""
        parameters = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        # Three runs of names: S_svr, other names with a correction, and the rest.
        names = sorted(parameters, key=lambda n: (n not in plain, n not in correction))
        split, corrected = sum(n in plain for n in names), sum(n in correction for n in names)
        trained = [parameters[n] for n in names]
        y = [p.data for p in trained]
        start = [x[n] for n in names]
        terms = [correction[n] for n in names[:corrected]]
        velocity = [torch.zeros_like(p) for p in y[split:]] if task.momentum else []
        torch.manual_seed(seeds.number(self._seed, seeds.DROPOUT, task.round, self._index))
        self._model.train()
        steps, total = 0, 0.0
        for images, labels in self._drawn_batches(task):
            loss = F.cross_entropy(self._model(images), labels)
            g = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
            towards = [
                *direction(g[:corrected], terms, y[:corrected], start[:corrected], task.prox_weight),
                *direction(g[corrected:], [], y[corrected:], start[corrected:], task.prox_weight),
            ]
            if task.momentum:
                step(y[:split], towards[:split], task.eta_l)
                momentum_step(y[split:], towards[split:], velocity, task.eta_l, task.momentum)
            else:
                step(y, towards, task.eta_l)
            steps += 1
            total += loss.item()
            if not math.isfinite(total):
                raise DivergedError(f"the loss is {loss.item()} at step {steps}; lower --eta-l")
        return steps, total / steps

    def _drawn_batches(self, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
        crops = seeds.stream(self._seed, seeds.AUGMENT, task.round, self._index)
        if task.augment and self._augmenter is None:
            self._augmenter = Augmenter(self._batches.images)
        for indices in self._batch_indices(task):
            if task.augment and self._augmenter is not None:
                images = self._batches.scaled(self._augmenter.batch(indices, crops))
                yield images, self._batches.labels[indices]
            else:
                yield self._batches.batch(indices)

    def _batch_indices(self, task: Task) -> Iterator[Tensor]:
        """Batches of a new permutation each epoch; a last batch that would be smaller is left out.

        A shard smaller than a batch is one batch, so that every client takes at least one step.
        """
        own = self._kept_back(task)[0]
        n = len(own)
        size = n if task.batch_size is None else min(task.batch_size, n)
        per_epoch = n // size
        steps = task.local_steps if task.local_steps is not None else (task.local_epochs or 1) * per_epoch
        random = seeds.stream(self._seed, seeds.BATCHES, task.round, self._index)
        order = np.arange(n)
        for k in range(steps):
            at = k % per_epoch
            if at == 0 and size < n:
                order = random.permutation(n)
            yield torch.from_numpy(own[order[at * size : (at + 1) * size]])


def _require_finite(tensors: dict[str, Tensor], steps: int) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise DivergedError(f"the model is not finite after {steps} steps; lower --eta-l")


def _on(device: torch.device, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors where they are there already, else copies."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _views(layout: Layout, flat: Flat, purpose: Purpose) -> dict[str, Tensor]:
    return {layout.specs[k].name: tensor_view(layout, flat, k) for k in layout.indices(purpose)}
