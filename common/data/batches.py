"""A data set as torch tensors, cut into the batches a model takes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from common.data.datasets import Dataset


class Batches:
    """Images in memory and labels on a device; images are moved, scaled and normalised batch by batch."""

    def __init__(
        self,
        dataset: Dataset,
        device: str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """`memory_format` is that of the images, also of those that wait in memory."""
        self._channels_last = memory_format is torch.channels_last
        self.images = self._in_order(torch.from_numpy(np.require(dataset.images, requirements=["W"])))
        self.labels = torch.tensor(dataset.labels, device=device)
        ones = (1,) * (self.images.ndim - 2)
        self._mean = torch.tensor(dataset.mean, device=device).view(1, -1, *ones)
        self._std = torch.tensor(dataset.std, device=device).view(1, -1, *ones)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        return self.labels.device

    def scaled(self, images: Tensor) -> Tensor:
        """Images as a model takes them."""
        images = self._in_order(images.to(self.device))
        if images.dtype != torch.uint8:
            return images
        return images.float().div_(255).sub_(self._mean).div_(self._std)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Model inputs and labels of some examples."""
        if self._channels_last:
            # Whole images are copied where they lie as rows of memory.
            chosen = self.images.movedim(1, -1).index_select(0, indices).movedim(-1, 1)
        else:
            chosen = self.images.index_select(0, indices)
        return self.scaled(chosen), self.labels[indices]

    def _in_order(self, images: Tensor) -> Tensor:
        if self._channels_last:
            return images.contiguous(memory_format=torch.channels_last)
        return row_major(images)


def row_major(images: Tensor) -> Tensor:
    """The same elements with the strides of a row-major array, also along axes of length one.

    torch takes (n, 1, h, w) with strides (h*w, 1, w, 1) for channels_last, as which it is contiguous too, and
    so is all that convolutions make of it. In that order oneDNN overruns its memory where a 1x1 convolution
    has a stride and fewer than 8 channels (docs/upstream/onednn_strided_1x1.py).
    """
    plain = torch.empty(images.shape, dtype=images.dtype, device=images.device)
    return images if images.stride() == plain.stride() else plain.copy_(images)
