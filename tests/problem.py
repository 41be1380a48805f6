"""A float64 problem as a user would plug it in; tests copy this file into the directory they run in."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def network(num_classes: int) -> nn.Module:
    """A small network with fixed first weights."""
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, num_classes))
    generator = torch.Generator().manual_seed(42)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model


def data(split: str) -> tuple[Tensor, Tensor]:
    """Three noisy clusters of points."""
    generator = torch.Generator().manual_seed(1 if split == "train" else 2)
    n = 60 if split == "train" else 30
    labels = torch.arange(n) % 3
    centres = torch.randn(3, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return centres[labels] + 0.7 * torch.randn(n, 6, generator=generator, dtype=torch.float64), labels
