"""Loss and accuracy of x on held-out data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from common.inputs import Inputs

BATCH = 500


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on a data set."""

    accuracy: float
    """Share of examples whose highest score is the right class."""
    loss: float
    """Mean cross-entropy."""


def evaluate(model: nn.Module, inputs: Inputs) -> Evaluation:
    """Runs a model over a whole data set."""
    correct, loss = 0, 0.0
    model.eval()
    with torch.inference_mode():
        for indices in torch.split(torch.arange(len(inputs)), BATCH):
            images, labels = inputs.batch(indices)
            scores = model(images)
            loss += F.cross_entropy(scores, labels, reduction="sum").item()
            correct += int((scores.argmax(1) == labels).sum())
    return Evaluation(accuracy=correct / len(inputs), loss=loss / len(inputs))
