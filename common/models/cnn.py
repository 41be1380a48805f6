"""A small convolutional network for small images."""

from __future__ import annotations

from torch import Tensor, nn


class CNN(nn.Module):
    """Two 3x3 convolutions, a pooling to 4x4, one hidden linear layer and the classifier."""

    classifier_modules = ("classifier",)

    def __init__(self, num_classes: int, channels: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        scores: Tensor = self.classifier(self.features(images))
        return scores
