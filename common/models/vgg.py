"""VGG-11 for 32x32 images, as in the FedPVR paper: no normalisation, a classifier of three linear layers."""

from __future__ import annotations

from torch import Tensor, nn

from common.models.init import init_convolutions, scaled

WIDTHS = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


class VGG11(nn.Module):
    """Eight convolutions in five stages, then 512-512-512-C."""

    classifier_modules = ("intermediate_classifier", "classifier")

    def __init__(self, num_classes: int, channels: int = 3, width: float = 1.0, image_size: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for entry in WIDTHS:
            if isinstance(entry, int):
                after = scaled(entry, width)
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(inplace=True)]
                before = after
            else:
                # A small image that has come down to one pixel cannot be pooled; names stay the same.
                layers.append(nn.MaxPool2d(2, 2) if image_size > 1 else nn.Identity())
                image_size //= 2
        self.features = nn.Sequential(*layers)
        self.intermediate_classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(before, before),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(before, before),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Linear(before, num_classes)
        init_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        features = self.features(images).flatten(1)
        scores: Tensor = self.classifier(self.intermediate_classifier(features))
        return scores
