"""Loss and accuracy of a model on data it was not trained on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.data.batches import Batches
from common.records.rounds import Evaluation

BATCH = 100
"""Larger batches are slower: their layers do not fit into the cache, and fresh memory is fetched for each."""


@torch.inference_mode()
def scores(model: nn.Module, batches: Batches, indices: Tensor) -> Tensor:
    """Class scores of some examples, for the processor."""
    model.eval()
    found = torch.cat([model(batches.batch(part)[0]) for part in torch.split(indices, BATCH)])
    return batches.place.fetch(found)


def evaluate(model: nn.Module, batches: Batches, indices: Tensor | None = None) -> Evaluation:
    """Runs a model over a data set, or over some of its examples."""
    chosen = torch.arange(len(batches)) if indices is None else indices
    return judged(scores(model, batches, chosen), batches.labels[chosen])


def judged(found: Tensor, labels: Tensor) -> Evaluation:
    """How good scores are."""
    right = found.argmax(1) == labels
    counts = torch.bincount(labels, minlength=found.shape[1])
    hits = torch.bincount(labels[right], minlength=found.shape[1])
    loss = F.cross_entropy(found.double(), labels).item()
    shares = (h / n if n else None for h, n in zip(hits.tolist(), counts.tolist(), strict=True))
    return Evaluation(
        accuracy=right.double().mean().item(),
        loss=loss if math.isfinite(loss) else None,
        class_accuracy=tuple(shares),
    )
