"""A data set as torch tensors, cut into the batches a model takes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from common.datasets import Dataset


class Inputs:
    """Images and labels in memory; uint8 images are scaled and normalised batch by batch."""

    def __init__(self, dataset: Dataset) -> None:
        self.images = torch.from_numpy(np.require(dataset.images, requirements=["C", "W"]))
        self.labels = torch.tensor(dataset.labels)
        ones = (1,) * (self.images.ndim - 2)
        self._mean = torch.tensor(dataset.mean).view(1, -1, *ones)
        self._std = torch.tensor(dataset.std).view(1, -1, *ones)

    def __len__(self) -> int:
        return len(self.labels)

    def scaled(self, images: Tensor) -> Tensor:
        """Images as a model takes them."""
        if images.dtype != torch.uint8:
            return images
        return images.float().div_(255).sub_(self._mean).div_(self._std)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Model inputs and labels of some examples."""
        return self.scaled(self.images[indices]), self.labels[indices]
