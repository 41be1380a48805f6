"""A data set as torch tensors, cut into the batches a model takes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from common.data.datasets import Dataset
from common.devices.place import PROCESSOR, Place


class Batches:
    """Images and labels where a model computes; images are scaled and normalised batch by batch."""

    def __init__(
        self,
        dataset: Dataset,
        place: Place = PROCESSOR,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """`memory_format` is that of the images, also of those that wait in memory."""
        self.place = place
        """Where batches go."""
        self._channels_last = place.images_in(memory_format) is torch.channels_last
        images = self._in_order(torch.from_numpy(np.require(dataset.images, requirements=["W"])))
        # With a copy of the images in wider frames, if they are to be augmented.
        self.home = place if place.holds(3 * images.nbytes) else PROCESSOR
        """Where the images wait: with the model, unless they are too many."""
        self.images = self.home.put(images)
        self.labels = torch.tensor(dataset.labels)
        """For the processor."""
        self._labels = place.put(self.labels)
        ones = (1,) * (self.images.ndim - 2)
        self._mean = place.put(torch.tensor(dataset.mean).view(1, -1, *ones))
        self._std = place.put(torch.tensor(dataset.std).view(1, -1, *ones))

    def __len__(self) -> int:
        return len(self.labels)

    def scaled(self, images: Tensor) -> Tensor:
        """Images as a model takes them."""
        images = self._in_order(self.place.put(images))
        if images.dtype != torch.uint8:
            return images
        return images.float().div_(255).sub_(self._mean).div_(self._std)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Model inputs and labels of some examples."""
        chosen = self.home.put(indices)
        if self._channels_last:
            # Whole images are copied where they lie as rows of memory.
            images = self.images.movedim(1, -1).index_select(0, chosen).movedim(-1, 1)
        else:
            images = self.images.index_select(0, chosen)
        return self.scaled(images), self.labels_of(indices)

    def labels_of(self, indices: Tensor) -> Tensor:
        """The labels of some examples, where the model computes."""
        return self._labels[self.place.put(indices)]

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
    plain = torch.empty_like(images, memory_format=torch.contiguous_format)
    return images if images.stride() == plain.stride() else plain.copy_(images)
