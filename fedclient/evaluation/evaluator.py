"""Evaluates x on data that a client does not train on, and counts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import plugin
from common.data.batches import Batches
from common.data.datasets import Labels
from common.errors import RunError, place_in_plugin
from common.evaluate import scores
from common.metrics.auroc import pairs_by_class
from common.metrics.confusion import cells
from common.records.sites import SiteCounts

Loss = Callable[[Tensor, Tensor], Tensor]
"""Mean loss, a scalar, of scores (B, classes) and labels (B,)."""


class Evaluator:
    """What a client of a run without data at the server evaluates on, and by which loss."""

    def __init__(self, test: Batches | None, loss: str = "") -> None:
        """`test` is a test set of its own, if it has one; `loss` module:function or nothing."""
        self._test = test
        self._plug_in = loss
        self.loss = _checked_loss(loss) if loss else F.cross_entropy

    def counts(self, model: nn.Module, shard: Batches, held_out: Labels) -> SiteCounts | None:
        """How the model does on the test set or, without one, on what is held out of the shard."""
        data = shard if self._test is None else self._test
        chosen = torch.from_numpy(held_out) if self._test is None else torch.arange(len(data))
        if not len(chosen):
            return None
        return self._counted(scores(model, data, chosen), data.labels[chosen])

    def _counted(self, found: Tensor, labels: Tensor) -> SiteCounts:
        num_classes, right = found.shape[1], labels.numpy()
        if self._plug_in:
            total = self.loss(found, labels).item() * len(right)
        else:
            total = F.cross_entropy(found.double(), labels, reduction="sum").item()
        matrix = np.zeros((num_classes, num_classes), np.int64)
        np.add.at(matrix, (right, found.argmax(1).numpy()), 1)
        return SiteCounts(
            examples=len(right),
            loss_sum=total if math.isfinite(total) else None,
            confusion=cells(matrix),
            pairs=pairs_by_class(found.double().softmax(1).numpy(), right),
        )


def _checked_loss(name: str) -> Loss:
    """A loss of the client's own code, which has to give a scalar."""
    function = plugin.load(name)

    def loss(found: Tensor, labels: Tensor) -> Tensor:
        expected = f"loss {name}: expected function(scores, labels) -> mean loss, a scalar tensor"
        try:
            value = function(found, labels)
        except Exception as error:
            raise RunError(f"{expected}, got {error!r}{place_in_plugin(error)}") from error
        if not isinstance(value, Tensor) or value.ndim:
            raise RunError(f"{expected}, got {type(value).__name__}")
        return value

    return loss
