"""One training step outside of a run, to see what it takes."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

import numpy as np
import torch

from common.data.batches import Batches
from common.data.datasets import Dataset
from common.errors import WrongRunError
from common.models.build import build_model, check_fit, tensor_specs
from common.models.memory_format import memory_format
from common.server_step.rules import Rules
from common.tensors.layout import Layout, fingerprint
from common.tensors.torch_views import flatten
from fedclient.config import ClientConfig
from fedclient.rpc.seat import Seat
from fedclient.training.task import Task
from fedclient.training.train import Trainer

LONG_S = 5.0
"""A first step that takes so long is not repeated, though it warms things up too."""


@dataclass(frozen=True)
class Step:
    """What a step took."""

    seconds: float
    loss: float
    examples: int
    steps_of_round: int
    peak_bytes: int
    """Of the process, all in all."""


def built(seat: Seat) -> torch.nn.Module:
    """The run's model; raises unless its tensors are the server's."""
    model = build_model(seat.model, seat.seed)
    found = fingerprint(tensor_specs(model))
    if found != seat.fingerprint:
        raise WrongRunError(
            f"model {seat.model.name} here has fingerprint {found[:12]}, the server's "
            f"{seat.fingerprint[:12]}; install the same code on both"
        )
    return model


def step(config: ClientConfig, seat: Seat, rules: Rules, model: torch.nn.Module, dataset: Dataset) -> Step:
    """Trains for a step, or two, under the rules of a run but for what makes clients differ."""
    torch.set_num_threads(config.threads or 1)
    few = Batches(dataset.subset(np.arange(min(2, len(dataset.labels)))))
    check_fit(model, few.scaled(few.images), seat.model)  # On the processor; a trainer moves the model.
    batches = Batches(dataset, config.place, memory_format(model, dataset.image_shape))
    trainer = Trainer(model, batches, seat.seed, seat.index)
    of_round, batch = trainer.work(rules)
    plain = replace(
        rules,
        algorithm="fedavg",
        prox_weight=0.0,
        derived=False,
        update_codec="fp32",
        control_codec="fp32",
        local_epochs=None,
        local_steps=1,
        validation=0.0,
    )
    layout = Layout(tensor_specs(model))
    task = Task(
        rules=plain, layout=layout, broadcast=flatten(model, layout), encoding=plain.update_encoding(layout)
    )
    update = trainer.train(task, task.state_layout.allocate())
    if update.seconds < LONG_S:
        update = trainer.train(task, task.state_layout.allocate())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return Step(update.seconds, update.loss, batch, of_round, peak)
