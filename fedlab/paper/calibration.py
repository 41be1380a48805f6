"""How fast this machine trains a model: a few steps, measured."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.nn import functional as F

from common.models.build import build_model
from common.models.spec import ModelSpec
from fedlab.paper.data import DATA
from fedlab.paper.plan import CostedRun

ENOUGH_S = 0.5
"""Processor time after which no further step is measured; there is one at least, after one that is not."""
ETA = 0.01


def images_per_second(run: CostedRun) -> float:
    """Images that one core trains on per second, with the model and the batches of a run; not augmented.

    In processor time, so that a busy machine does not count as a slow one.
    """
    torch.set_num_threads(1)
    said, data = run.settings, DATA[str(run.settings["dataset"])]
    batch, shape = int(str(said["batch_size"])), data.shape_at(said.get("image_size"))
    width = float(str(said.get("width", 1.0)))
    model = build_model(
        ModelSpec(name=run.model, num_classes=data.classes, image_shape=shape, width=width), seed=0
    )
    parameters: list[Tensor] = list(model.parameters())
    images, labels = torch.randn(batch, *shape), torch.zeros(batch, dtype=torch.int64)
    steps, started = -1, 0.0
    while steps < 1 or time.process_time() - started < ENOUGH_S:
        loss = F.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-ETA)
        steps += 1
        if steps == 0:
            started = time.process_time()
    return steps * batch / (time.process_time() - started)
