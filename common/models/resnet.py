"""ResNet-8 for 32x32 images, as in the FedPVR paper: three residual blocks and one linear classifier.

The paper speaks of BatchNorm, its released code uses GroupNorm with two groups; both are here. The
normalisation layers are called bn* either way, as in the released code, so that tensor names stay comparable.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from common.models.init import init_convolutions, scaled

Norm = Literal["group", "batch"]


def _norm(kind: Norm, width: int) -> nn.Module:
    return nn.GroupNorm(2, width) if kind == "group" else nn.BatchNorm2d(width)


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = _norm(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = _norm(norm, width)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), _norm(norm, width)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Features of half the size where the stride is 2."""
        out = F.relu(self.bn1(self.conv1(images)))
        return F.relu(self.bn2(self.conv2(out)) + self.downsample(images))


class ResNet8(nn.Module):
    """One convolution, three blocks of widths 16, 32 and 64, global pooling, classifier."""

    classifier_modules = ("classifier",)
    channels_last = True

    def __init__(self, num_classes: int, channels: int = 3, width: float = 1.0, norm: Norm = "group") -> None:
        super().__init__()
        first, second, third = (scaled(n, width) for n in (16, 32, 64))
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.bn1 = _norm(norm, first)
        self.layer1 = nn.Sequential(Block(first, first, 1, norm))
        self.layer2 = nn.Sequential(Block(first, second, 2, norm))
        self.layer3 = nn.Sequential(Block(second, third, 2, norm))
        self.classifier = nn.Linear(third, num_classes)
        init_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        out = F.relu(self.bn1(self.conv1(images)))
        out = self.layer3(self.layer2(self.layer1(out)))
        scores: Tensor = self.classifier(F.adaptive_avg_pool2d(out, 1).flatten(1))
        return scores
