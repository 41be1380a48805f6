"""What becomes of y_i when training is over: the bytes to send, and c_i+."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from common import seeds
from common.errors import DivergedError
from common.tensors.layout import Flat, Purpose
from fedclient.training.round_tensors import RoundTensors
from fedclient.training.task import Task


def encode(task: Task, tensors: RoundTensors, steps: int, seed: int, index: int) -> Flat:
    """The update as it travels, and with it c_i+, which follows from what the server will see."""
    encoding, values, end = task.encoding, tensors.values, tensors.model_bytes
    sends_c_i = bool(encoding.layout.indices(Purpose.CONTROL))
    if encoding.plain:
        _next_variates(task, tensors, steps)
        if sends_c_i:
            _copy(tensors.next_c_i, tensors.sent_c_i)
        return values[: encoding.layout.num_bytes]
    random = seeds.stream(seed, seeds.CODEC_UP, task.round, index)
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
    require_finite(tensors.next_c_i, steps)


def require_finite(tensors: dict[str, Tensor], steps: int) -> None:
    """Raises unless every number of the model is finite."""
    if not all(_is_finite(tensor) for tensor in tensors.values()):
        raise DivergedError(f"the model is not finite after {steps} steps; lower --eta-l")


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are: their sum tells in one pass, unless it is too large itself."""
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())
