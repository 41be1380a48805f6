"""The gradient of all of a client's examples at x, and how it is sent as c_i.

The model is as it is in training, so that this is the gradient of what the steps descend: a norm takes the
statistics of each batch. But nothing is drawn: no crops, no dropout. Batches are cut from the examples in
their order, all of at least the size of a step's, so that one more norm has enough to count.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from common import seeds
from common.data.batches import Batches
from common.data.datasets import Labels
from common.errors import DivergedError
from common.server_step.rules import Rules
from common.tensors.layout import Flat
from common.tensors.torch_views import tensor_views
from fedclient.evaluation.evaluator import Loss
from fedclient.training.local_steps import LocalSteps
from fedclient.training.outgoing import require_finite
from fedclient.training.task import Task


def without_chance(model: nn.Module) -> None:
    """Lets a model that is training drop nothing."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.eval()


def whole_gradient(
    local: LocalSteps, model: nn.Module, loss: Loss, batches: Batches, examples: Labels, rules: Rules
) -> tuple[dict[str, Tensor], float]:
    """The gradient by name, clipped and with weight decay where steps have them, and the mean loss."""
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in local.trained]
    total = 0.0
    for part in np.array_split(examples, max(1, len(examples) // rules.batch(len(examples)))):
        images, labels = batches.batch(torch.from_numpy(part))
        value, share = loss(model(images), labels), len(part) / len(examples)
        for each, g in zip(sums, local.gradient(value), strict=True):
            each += g * share
        total += value.item() * share
    if not math.isfinite(total):
        raise DivergedError(f"the loss at the first x is {total}; see to the data, or start from another x")
    mean = [each.to(p.dtype) for each, p in zip(sums, local.trained, strict=True)]
    return dict(zip(local.names, local.regularised(mean), strict=True)), total


def as_variate(task: Task, gradient: dict[str, Tensor], seed: int, index: int) -> Flat:
    """The bytes of an update that has a gradient on S_svr as its c_i, and nothing else."""
    encoding = task.encoding
    layout = encoding.layout
    values = layout.allocate() if task.room is None else task.room[: layout.num_bytes]
    for name, view in tensor_views(layout, values).items():
        view.copy_(gradient[name])
    require_finite({name: gradient[name] for name in task.reduced}, 0)
    if encoding.plain:
        return values
    return encoding.encode_in_place(values, seeds.stream(seed, seeds.CODEC_UP, 0, index), None, None)
