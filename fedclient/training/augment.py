"""Random flip and crop of whole batches of images.

Shapes: N examples in the shard, n in a batch, C channels, H by W pixels, P = PADDING.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from common.devices.place import PROCESSOR, Place
from common.errors import ConfigError

PADDING = 4


class Augmenter:
    """Flips half of the images and crops each one out of a zero-padded copy of itself.

    What is done to an image is drawn on the processor, so that it is the same everywhere; it is done where
    the images are.
    """

    def __init__(self, images: Tensor, home: Place = PROCESSOR) -> None:
        """`images` is the whole shard, NCHW, at `home`; it is padded once."""
        if images.ndim != 4:
            raise ConfigError(
                f"--augment needs images of shape CxHxW, got {tuple(images.shape[1:])}; use --no-augment"
            )
        self._home = home
        height, width = images.shape[2:]
        padded = F.pad(images, (PADDING,) * 4)  # (N, C, H + 2P, W + 2P)
        # windows[n, :, dy, dx] is image n shifted by (dy, dx): a view, so a crop is one gather.
        self._windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, 2P + 1, 2P + 1, H, W)

    def batch(self, indices: Tensor, random: np.random.Generator) -> Tensor:
        """The images of these examples, each flipped and cropped at random."""
        chosen, flips, dy, dx = map(self._home.put, (indices, *drawn(len(indices), random)))
        # Flipping before the crop equals flipping the mirrored crop afterwards.
        crops = self._windows[chosen, :, dy, torch.where(flips, 2 * PADDING - dx, dx)]  # (n, C, H, W)
        return torch.where(flips[:, None, None, None], crops.flip(3), crops)


def drawn(n: int, random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """What is done to each of n images: whether it is flipped, and its shift down and to the right; (n,)."""
    flips = torch.from_numpy(random.random(n) < 0.5)
    dy, dx = (torch.from_numpy(random.integers(0, 2 * PADDING + 1, n)) for _ in range(2))
    return flips, dy, dx
