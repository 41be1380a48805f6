"""Local training: K steps of partial variance reduction from x to y_i."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import seeds
from common.data.batches import Batches
from common.errors import DivergedError
from common.evaluate import evaluate
from common.metrics.drift import ClientDrift
from common.records.sites import SiteCounts
from common.server_step.rules import Rules
from common.tensors.classes import TensorClasses
from common.tensors.layout import Flat, Purpose
from common.tensors.torch_views import bind, tensor_views
from fedclient.evaluation.evaluator import Evaluator, Loss
from fedclient.measures.whole_gradient import as_variate, whole_gradient, without_chance
from fedclient.midround.saving import Saving, UnderWay, round_name
from fedclient.training.freed_memory import kept_until_the_end
from fedclient.training.local_steps import LocalSteps
from fedclient.training.minibatches import Minibatches
from fedclient.training.outgoing import encode, require_finite
from fedclient.training.own_tensors import OwnTensors
from fedclient.training.round_tensors import RoundTensors
from fedclient.training.task import Task, Update

LOOK_EVERY = 32
"""Steps from one look at the loss to the next, where looking is free."""


class Trainer:
    """A model and a shard, ready for any round."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        seed: int,
        index: int,
        own: OwnTensors | None = None,
        evaluator: Evaluator | None = None,
        saving: Saving | None = None,
    ) -> None:
        """`evaluator` is for a run without data at the server; `saving` for rounds that take long."""
        self._model = model
        self.own = own or OwnTensors(model, TensorClasses(()))
        """Tensors that are not in x."""
        self._batches = batches
        self._place = batches.place
        self._place.settle(model)
        self._evaluator = evaluator
        self._loss: Loss = F.cross_entropy if evaluator is None else evaluator.loss
        self._minibatches = Minibatches(batches, seed, index, by_class=evaluator is not None)
        self._seed = seed
        self._index = index
        self._saving = saving

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
        if self._place.shares_memory and task.room is None:
            self._compute_on_x(task, state)  # And not on the last y_i, whose buffer can be used again.
        tensors = RoundTensors(task, state)
        personal = self.own.trained(tensors.next_state)
        trained = self._start_from_x(tensors)
        with kept_until_the_end():
            accuracy, found = self._validate(task), self._count(task)
            steps, loss, drift = self._steps(task, tensors, personal)
        self._collect(trained, tensors)
        self._collect_personal(personal, steps)
        self._clear_for_sending(tensors, steps)
        payload = encode(task, tensors, steps, self._seed, self._index)
        return Update(
            round=task.round,
            payload=payload,
            state=tensors.next_state,
            steps=steps,
            loss=loss,
            validation_accuracy=accuracy,
            seconds=time.monotonic() - started,
            evaluation=found,
            drift=drift,
        )

    def evaluate(self, task: Task, personal: Flat) -> SiteCounts | None:
        """How x, with the client's own tensors, does on what it keeps for that; None if it keeps nothing."""
        self._compute_on_x(task, personal)
        return self._count(task)

    def first_variate(self, task: Task, personal: Flat) -> Update:
        """c_i as a run with warm variates starts: the gradient of all that is trained on, at x."""
        started, place = time.monotonic(), self._place
        model = task.layout.part(Purpose.MODEL, Purpose.BUFFER)
        # A copy: a norm counts what it sees, and x is not this client's alone.
        x = tensor_views(model, task.broadcast[: model.num_bytes].copy())
        bind(self._model, place.put_all(x | self.own.besides_x(self._model, personal)))
        parameters = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        at_x = {n: p.data for n, p in parameters.items()}
        local = LocalSteps(task.rules, parameters, at_x, {}, svr=task.reduced)
        place.seed(seeds.number(self._seed, seeds.DROPOUT, 0, self._index))
        self._model.train()
        self.own.hold_still()
        without_chance(self._model)
        own = self._minibatches.split(task.rules)[0]
        gradient, loss = whole_gradient(local, self._model, self._loss, self._batches, own, task.rules)
        payload = as_variate(task, gradient, self._seed, self._index)
        seconds = time.monotonic() - started
        return Update(round=task.round, payload=payload, state=personal, steps=0, loss=loss, seconds=seconds)

    def _compute_on_x(self, task: Task, personal: Flat) -> None:
        x = tensor_views(task.layout, task.broadcast)
        bind(self._model, self._place.put_all(x | self.own.besides_x(self._model, personal)))

    def _count(self, task: Task) -> SiteCounts | None:
        if self._evaluator is None or not task.rules.evaluate:
            return None
        return self._evaluator.counts(self._model, self._batches, self._minibatches.split(task.rules)[1])

    def _start_from_x(self, tensors: RoundTensors) -> dict[str, Tensor]:
        """Makes the model compute on y_i and the buffers, which hold x; returns y_i where it is trained."""
        trained = self._place.put_all(tensors.y)
        others = tensors.buffers | self.own.besides_x(self._model, tensors.next_state)
        bind(self._model, trained | self._place.put_all(others))
        return trained

    def _validate(self, task: Task) -> float | None:
        if self._evaluator is not None:
            return None
        held_out = self._minibatches.split(task.rules)[1]
        if not len(held_out):
            return None
        return evaluate(self._model, self._batches, torch.from_numpy(held_out)).accuracy

    def _steps(
        self, task: Task, tensors: RoundTensors, personal: dict[str, Tensor]
    ) -> tuple[int, float, ClientDrift | None]:
        """Trains y_i in place, and what is personal; returns K_i, the mean loss, and how it drifted."""
        c, place = tensors.c, self._place
        correction = {n: task.algorithm.correction(c_i, c.get(n)) for n, c_i in tensors.c_i.items()}
        parameters = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        # Nothing pulls personal tensors anywhere: they are as far from themselves as from x.
        x = place.put_all(tensors.x) | {n: p.data for n, p in parameters.items() if n in personal}
        local = LocalSteps(task.rules, parameters, x, place.put_all(correction), svr=c.keys())
        if task.rules.record_drift:
            local.measure(c.keys(), personal)
        place.seed(seeds.number(self._seed, seeds.DROPOUT, task.round, self._index))
        self._model.train()
        self.own.hold_still()
        # Summed up where the model is: reading the loss makes the program wait for the device.
        total = place.put(torch.zeros((), dtype=place.widest))
        under_way = self._under_way(task, tensors, personal, local, total)
        steps = under_way.resumed() if under_way is not None else 0
        for images, labels in self._minibatches.draw(task.rules, after=steps):
            with place.lower_precision():
                loss = self._loss(self._model(images), labels)  # (B, classes) and (B,) make a scalar.
            local.take(loss)
            steps += 1
            total += loss.detach()
            if place.answers_at_once and steps % LOOK_EVERY == 0:
                _finite(total, steps)
            if under_way is not None:
                under_way.made(steps)
        return steps, _finite(total, steps) / steps, local.meter.measured() if local.meter else None

    def _under_way(
        self,
        task: Task,
        tensors: RoundTensors,
        personal: Collection[str],
        local: LocalSteps,
        total: Tensor,
    ) -> UnderWay | None:
        """Saves the round from time to time, if that is wanted."""
        saving, rules, model = self._saving, task.rules, self._model
        if saving is None:
            return None

        def live() -> dict[str, Tensor]:
            y = {f"y/{name}": model.get_parameter(name).data for name in tensors.y}
            buffers = {f"y/{name}": model.get_buffer(name) for name in tensors.buffers}
            momentum = {f"momentum/{name}": velocity for name, velocity in local.momentum.items()}
            state = model.state_dict() if personal else {}
            own = {f"personal/{name}": state[name] for name in personal}
            return {"loss": total, **y, **buffers, **own, **momentum}

        def owner() -> str:
            state, labels = tensors.state, self._batches.labels
            return round_name(saving.run_id, self._seed, self._index, task, state, labels, self._place)

        work = self.work(rules)[0], self._minibatches.per_epoch(rules)
        return UnderWay(saving, task.round, work, owner, live, self._place)

    def _collect(self, trained: dict[str, Tensor], tensors: RoundTensors) -> None:
        """Brings what was trained into `values`, where it is not there already."""
        for name, tensor in trained.items():
            if tensor is not tensors.y[name]:
                tensors.y[name].copy_(tensor)
        for name, view in tensors.buffers.items():
            # A module may have put a new tensor in the place of the one it was bound to.
            view.copy_(self._model.get_buffer(name))

    def _collect_personal(self, personal: dict[str, Tensor], steps: int) -> None:
        """The same for what stays here."""
        if not personal:
            return
        state = self._model.state_dict()
        for name, view in personal.items():
            if state[name].data_ptr() != view.data_ptr():
                view.copy_(state[name])
        require_finite(personal, steps)

    def _clear_for_sending(self, tensors: RoundTensors, steps: int) -> None:
        """The last look at y_i as it was trained, before it is encoded and the variate follows from it.

        Whatever a client does to its update for the sake of privacy belongs here: clip y_i - x, add noise.
        Later it would be too late, because what is encoded is what the server and c_i+ are computed from.
        """
        require_finite(tensors.y, steps)


def _finite(loss: Tensor, steps: int) -> float:
    value = loss.item()
    if not math.isfinite(value):
        raise DivergedError(f"the loss is {value} after {steps} steps; lower --eta-l")
    return value
