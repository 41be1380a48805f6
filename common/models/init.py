"""What the models share: initialisation and scaling."""

from __future__ import annotations

import math

from torch import nn


def init_convolutions(model: nn.Module) -> None:
    """Draws convolution weights from N(0, 2 / (k * k * out_channels)); the rest keeps torch's default."""
    for module in model.modules():
        # A model that is only counted has nothing to draw, and torch takes seconds to load what would.
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
            nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / fan_out))


def scaled(channels: int, width: float) -> int:
    """A number of channels times the width, even (GroupNorm has two groups) and at least two."""
    return max(2, 2 * round(channels * width / 2))
