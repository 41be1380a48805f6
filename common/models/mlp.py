"""A multi-layer perceptron: the cheapest network that shows what very different clients do to training."""

from __future__ import annotations

from torch import Tensor, nn

from common.models.init import scaled

HIDDEN = 128
DEPTH = 4


class MLP(nn.Module):
    """Four hidden layers of 128 and the classifier, on flattened images."""

    classifier_modules = ("classifier",)

    def __init__(self, num_classes: int, batches: int, width: float = 1.0) -> None:
        super().__init__()
        hidden = scaled(HIDDEN, width)
        layers: list[nn.Module] = [nn.Flatten()]
        for depth in range(DEPTH):
            layers += [nn.Linear(hidden if depth else batches, hidden), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(hidden, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        scores: Tensor = self.classifier(self.features(images))
        return scores
