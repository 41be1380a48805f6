"""Local training: K steps of partial variance reduction from x to y_i."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import seeds
from common.data.batches import Batches
from common.errors import FedError
from common.evaluate import evaluate
from common.server_step.rules import Rules
from common.tensors.layout import Flat, Purpose
from common.tensors.torch_views import bind
from fedclient.training.freed_memory import kept_until_the_end
from fedclient.training.local_steps import LocalSteps
from fedclient.training.minibatches import Minibatches
from fedclient.training.round_tensors import RoundTensors
from fedclient.training.task import Task, Update

LOOK_EVERY = 32
"""Steps from one look at the loss to the next."""


class DivergedError(FedError):
    """Training left the finite numbers."""


class Trainer:
    """A model and a shard, ready for any round."""

    def __init__(self, model: nn.Module, batches: Batches, seed: int, index: int) -> None:
        self._model = model
        self._batches = batches
        self._minibatches = Minibatches(batches, seed, index)
        self._seed = seed
        self._index = index

    @property
    def examples(self) -> int:
        """Size of the shard."""
        return len(self._batches)

    def work(self, rules: Rules) -> tuple[int, int]:
        """How many steps a round has, and how many examples are in each."""
        return self._minibatches.work(rules)

    def train(self, task: Task, state: Flat) -> Update:
        """One round: K_i steps from x. `state` is laid out as `task.state_layout`, and is not changed."""
        started = time.monotonic()
        tensors = RoundTensors(task, state)
        trained = self._start_from_x(tensors)
        with kept_until_the_end():
            accuracy = self._validate(task)
            steps, loss = self._steps(task, tensors)
        self._collect(trained, tensors)
        self._clear_for_sending(tensors, steps)
        payload = self._encode(task, tensors, steps)
        return Update(
            round=task.round,
            payload=payload,
            state=tensors.next_state,
            steps=steps,
            step_sum=task.rules.step_sum(steps),
            loss=loss,
            validation_accuracy=accuracy,
            seconds=time.monotonic() - started,
        )

    def _start_from_x(self, tensors: RoundTensors) -> dict[str, Tensor]:
        """Makes the model compute on y_i and the buffers, which hold x; returns y_i where it is trained."""
        trained = _on(self._batches.device, tensors.y)
        bind(self._model, trained | _on(self._batches.device, tensors.buffers))
        return trained

    def _validate(self, task: Task) -> float | None:
        held_out = self._minibatches.split(task.rules)[1]
        if not len(held_out):
            return None
        return evaluate(self._model, self._batches, torch.from_numpy(held_out)).accuracy

    def _steps(self, task: Task, tensors: RoundTensors) -> tuple[int, float]:
        """Trains y_i in place; returns K_i and the mean loss."""
        c, device = tensors.c, self._batches.device
        correction = {n: task.algorithm.correction(c_i, c.get(n)) for n, c_i in tensors.c_i.items()}
        parameters = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        local = LocalSteps(
            task.rules, parameters, _on(device, tensors.x), _on(device, correction), svr=c.keys()
        )
        _seed(device, seeds.number(self._seed, seeds.DROPOUT, task.round, self._index))
        self._model.train()
        # Summed up where the model is: reading the loss makes the program wait for the device.
        steps, total = 0, torch.zeros((), dtype=torch.float64, device=device)
        for images, labels in self._minibatches.draw(task.rules):
            loss = F.cross_entropy(self._model(images), labels)  # (B, classes) and (B,) make a scalar.
            local.take(loss)
            steps += 1
            total += loss.detach()
            if steps % LOOK_EVERY == 0:
                _finite(total, steps)
        return steps, _finite(total, steps) / steps

    def _collect(self, trained: dict[str, Tensor], tensors: RoundTensors) -> None:
        """Brings what was trained into `values`, where it is not there already."""
        for name, tensor in trained.items():
            if tensor is not tensors.y[name]:
                tensors.y[name].copy_(tensor)
        for name, view in tensors.buffers.items():
            # A module may have put a new tensor in the place of the one it was bound to.
            view.copy_(self._model.get_buffer(name))

    def _clear_for_sending(self, tensors: RoundTensors, steps: int) -> None:
        """The last look at y_i as it was trained, before it is encoded and the variate follows from it.

        Whatever a client does to its update for the sake of privacy belongs here: clip y_i - x, add noise.
        Later it would be too late, because what is encoded is what the server and c_i+ are computed from.
        """
        _require_finite(tensors.y, steps)

    def _encode(self, task: Task, tensors: RoundTensors, steps: int) -> Flat:
        """The update as it travels."""
        encoding, values, end = task.encoding, tensors.values, tensors.model_bytes
        sends_c_i = bool(encoding.layout.indices(Purpose.CONTROL))
        if encoding.plain:
            _next_variates(task, tensors, steps)
            if sends_c_i:
                _copy(tensors.next_c_i, tensors.sent_c_i)
            return values[: encoding.layout.num_bytes]
        random = seeds.stream(self._seed, seeds.CODEC_UP, task.round, self._index)
        model = encoding.part(Purpose.MODEL, Purpose.BUFFER)
        payload = model.encode_in_place(values[:end], random, task.broadcast[:end], tensors.residuals)
        # From here on y_i is what the server will see, and the variate follows from that.
        _next_variates(task, tensors, steps)
        if not sends_c_i:
            return payload
        _copy(tensors.next_c_i, tensors.sent_c_i)
        coded = encoding.part(Purpose.CONTROL).encode_in_place(values[end:], random, None, None)
        # The client remembers c_i+ as the server will see it.
        _copy(tensors.sent_c_i, tensors.next_c_i)
        return np.concatenate([payload, coded])


def _copy(source: dict[str, Tensor], to: dict[str, Tensor]) -> None:
    for name, tensor in to.items():
        tensor.copy_(source[name])


def _next_variates(task: Task, tensors: RoundTensors, steps: int) -> None:
    """c_i+, or FedDyn's next l_i, from x and y_i (paper, Alg. I line 11)."""
    method, step_sum, prox_weight = task.algorithm, task.rules.step_sum(steps), task.rules.prox_weight
    for name, c_i in tensors.c_i.items():
        c, x, y = tensors.c.get(name), tensors.x[name], tensors.y[name]
        tensors.next_c_i[name].copy_(method.next_variate(c_i, c, x, y, step_sum, prox_weight))
    _require_finite(tensors.next_c_i, steps)


def _require_finite(tensors: dict[str, Tensor], steps: int) -> None:
    if not all(_is_finite(tensor) for tensor in tensors.values()):
        raise DivergedError(f"the model is not finite after {steps} steps; lower --eta-l")


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are: their sum tells in one pass, unless it is too large itself."""
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def _finite(loss: Tensor, steps: int) -> float:
    value = loss.item()
    if not math.isfinite(value):
        raise DivergedError(f"the loss is {value} after {steps} steps; lower --eta-l")
    return value


def _seed(device: torch.device, number: int) -> None:
    """Seeds the generator of a device; torch keeps a note of every seed for devices that are not in use."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(number)
    else:
        torch.manual_seed(number)


def _on(device: torch.device, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors where they are there already, else copies."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}
