"""Plug-ins for a federation that does no training; copied into the folder in which its processes run.

Only the last layer is trained, for one step on one example. All other parameters have the shapes of the model
that is named and ask for no gradient: clients send and receive them like any others, and train nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 16
EXAMPLES = 64
CNN_SHAPES = [(32, 3, 3, 3), (32,), (64, 32, 3, 3), (64,), (76, 1024), (76,)]


class Still(nn.Module):
    """Parameters of given shapes, of which all but the classifier's stay as they are."""

    classifier_modules = ("reduced", "classifier")

    def __init__(
        self, shapes: list[tuple[int, ...]], reduced: list[tuple[int, ...]], inputs: int, num_classes: int
    ) -> None:
        """`reduced` are shapes that belong to the classifier, so that FedPVR sends variates for them."""
        super().__init__()
        self.features = nn.ParameterList(map(_still, shapes))
        self.reduced = nn.ParameterList(map(_still, reduced))
        self.classifier = nn.Linear(inputs, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch."""
        return F.linear(images.flatten(1), self.classifier.weight[:, :FEATURES], self.classifier.bias)


def _still(shape: tuple[int, ...]) -> nn.Parameter:
    values = torch.linspace(-1.0, 1.0, int(np.prod(shape)))
    return nn.Parameter(values.reshape(shape), requires_grad=False)


def idle(num_classes: int) -> nn.Module:
    """1,000 numbers, 4 KB."""
    return Still([], [], 99, num_classes)


def cnn(num_classes: int) -> nn.Module:
    """A small convolutional network, 0.4 MB."""
    return Still(CNN_SHAPES, [], 76, num_classes)


def vgg11(num_classes: int) -> nn.Module:
    """VGG-11 for 32x32 images, 39.0 MB."""
    from common.models.vgg import VGG11

    with torch.device("meta"):
        model = VGG11(num_classes)
    features = [tuple(p.shape) for n, p in model.named_parameters() if n.startswith("features.")]
    middle = [tuple(p.shape) for n, p in model.named_parameters() if n.startswith("intermediate")]
    return Still(features, middle, model.classifier.in_features, num_classes)


def data(split: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """One example for each of some clients, and as many to test."""
    random = np.random.default_rng(1 if split == "train" else 2)
    return random.normal(size=(EXAMPLES, FEATURES)).astype(np.float32), np.arange(EXAMPLES) % 10
