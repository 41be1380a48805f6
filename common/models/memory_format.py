"""The order in memory of the images that a model trains on.

ResNet-8 trains a third faster on images whose channels lie side by side, VGG-11 a seventh slower (one thread,
batches of 64); so a model says itself what is better for it. Nothing is tried out when a client starts: the
order decides the last bits of a sum, and two clients have to get the same ones.
"""

from __future__ import annotations

import torch
from torch import nn

WHOLE_VECTOR = 8
"""Channels in a register of an AVX2 machine."""


def memory_format(model: nn.Module, image_shape: tuple[int, ...]) -> torch.memory_format:
    """channels_last for a model that asks for it in `channels_last` and is safe in it; else row-major.

    With one channel the two cannot be told apart by their strides, so that stays row-major.
    """
    asked, channels = getattr(model, "channels_last", False), image_shape[0]
    if asked and len(image_shape) == 3 and channels > 1 and not any(map(_overruns, model.modules())):
        return torch.channels_last
    return torch.contiguous_format


def _overruns(module: nn.Module) -> bool:
    """Whether oneDNN may write outside of its memory for it in channels_last.

    Seen below 8 channels (docs/upstream/onednn_strided_1x1.py); those that leave a rest are kept from it too.
    """
    if not isinstance(module, nn.Conv2d):
        return False
    per_group = module.in_channels // module.groups
    return module.kernel_size == (1, 1) and module.stride != (1, 1) and per_group % WHOLE_VECTOR != 0
