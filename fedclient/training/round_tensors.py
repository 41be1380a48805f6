"""The tensors of one round by name, as torch views of flat buffers."""

from __future__ import annotations

from torch import Tensor

from common.tensors.buffers import reused
from common.tensors.layout import Flat, Layout, Purpose
from common.tensors.torch_views import tensor_view
from fedclient.training.task import Task


class RoundTensors:
    """Four flat buffers and what lies in them. Writing a tensor writes its buffer.

    task.broadcast   x, buffers, c          as they came; only read
    values           y_i, buffers, c_i+     starts as x, is trained, and becomes what is sent
    state            c_i, residuals         as the last counted round left them; only read
    next_state       c_i+, residuals        what is remembered of this round
    """

    def __init__(self, task: Task, state: Flat) -> None:
        layout, variates = task.layout, task.variates
        self.model_bytes = layout.part(Purpose.MODEL, Purpose.BUFFER).num_bytes
        """How far y_i and the buffers reach in `values`, and x in the broadcast."""
        if task.room is None:
            self.values = reused(layout)
            self.values[: self.model_bytes] = task.broadcast[: self.model_bytes]
        else:
            self.values = task.room[: layout.num_bytes]
        self.state = state
        self.next_state = state.copy()

        self.x = _views(layout, task.broadcast, Purpose.MODEL)
        self.c = _views(layout, task.broadcast, Purpose.CONTROL)
        self.y = _views(layout, self.values, Purpose.MODEL)
        self.buffers = _views(layout, self.values, Purpose.BUFFER)
        self.sent_c_i = _views(layout, self.values, Purpose.CONTROL)
        # FedDyn keeps l_i in the same place.
        self.c_i = _views(variates, state[: variates.num_bytes], Purpose.CLIENT_CONTROL)
        self.next_c_i = _views(variates, self.next_state[: variates.num_bytes], Purpose.CLIENT_CONTROL)
        self.residuals = self.next_state[variates.num_bytes :]
        """What coding has left out of earlier updates; coding this one replaces it."""


def _views(layout: Layout, flat: Flat, purpose: Purpose) -> dict[str, Tensor]:
    return {layout.specs[k].name: tensor_view(layout, flat, k) for k in layout.indices(purpose)}
