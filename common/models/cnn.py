"""A small convolutional network for small images."""

from __future__ import annotations

from torch import Tensor, nn

from common.models.init import scaled


class CNN(nn.Module):
    """Two 3x3 convolutions, a pooling to 4x4, one hidden linear layer and the classifier."""

    classifier_modules = ("classifier",)

    def __init__(self, num_classes: int, channels: int = 1, width: float = 1.0) -> None:
        super().__init__()
        first, second, hidden = (scaled(n, width) for n in (16, 32, 64))
        self.features = nn.Sequential(
            nn.Conv2d(channels, first, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(second * 4 * 4, hidden),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(hidden, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        scores: Tensor = self.classifier(self.features(images))
        return scores
