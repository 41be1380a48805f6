"""Between a torch model and a flat buffer: the model's tensors become views of the buffer, without a copy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from common.tensors.layout import Flat, Layout


def tensor_view(layout: Layout, flat: Flat, index: int) -> Tensor:
    """One tensor of a flat buffer as a torch tensor that shares its memory."""
    spec = layout.specs[index]
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if not spec.num_bytes:
        return torch.empty(spec.shape, dtype=dtype)
    stored = torch.from_numpy(layout.array(flat, index))
    return stored if stored.dtype == dtype else stored.view(dtype)


def tensor_views(layout: Layout, flat: Flat) -> dict[str, Tensor]:
    """All tensors of a flat buffer by name."""
    return {spec.name: tensor_view(layout, flat, k) for k, spec in enumerate(layout.specs)}


def bind(model: nn.Module, views: dict[str, Tensor]) -> None:
    """Makes a model's parameters and buffers be these tensors: writing one writes the other."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = views[name]


def flatten(model: nn.Module, layout: Layout) -> Flat:
    """A copy of a model's tensors as a flat buffer."""
    flat = layout.allocate()
    state = model.state_dict()
    for index, spec in enumerate(layout.specs):
        if spec.num_bytes:
            raw = state[spec.name].detach().contiguous().reshape(-1).view(torch.uint8)
            np.copyto(layout.raw(flat, index), raw.numpy())
    return flat
