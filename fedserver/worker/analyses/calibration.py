"""What prediction sets are calibrated on: examples that clients keep aside, or half of the test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from common import seeds
from common.data.batches import Batches
from common.data.held_out import Indices
from common.records.conformal import ConformalRecord
from fedserver.worker.analyses.conformal import Labels, Probabilities, prediction_sets
from fedserver.worker.analyses.settings import TEST_HALF, VALIDATION

Scores = Callable[[Batches, Tensor], Tensor]
"""Class scores of some examples by the model that is asked about."""


class HeldOut:
    """What all clients with a shard of the server's data keep aside, and who keeps what."""

    def __init__(self, batches: Batches, owners: Indices) -> None:
        self._batches = batches
        self._owners = owners

    def of(self, clients: Sequence[int]) -> Tensor:
        """Which examples these clients keep."""
        return torch.from_numpy(np.flatnonzero(np.isin(self._owners, np.array(clients, np.int64))))

    def judged(self, scores: Scores, chosen: Tensor) -> tuple[Probabilities, Labels]:
        """Probabilities and labels of some of them."""
        found = scores(self._batches, chosen)
        return probabilities(found), self._batches.labels[chosen].numpy()


def conformal(
    scores: Scores, test: Batches, found: Tensor, held_out: HeldOut | None, clients: Sequence[int], seed: int
) -> ConformalRecord:
    """Prediction sets; `found` are the scores on the test set, `clients` those who may have kept anything."""
    tested = probabilities(found), test.labels.numpy()
    chosen = held_out.of(clients) if held_out is not None else torch.arange(0)
    if held_out is not None and len(chosen):
        calibration, kind = held_out.judged(scores, chosen), VALIDATION
    else:
        order = seeds.stream(seed, seeds.CALIBRATION).permutation(len(test))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        calibration, tested = ((tested[0][half], tested[1][half]) for half in halves)
        kind = TEST_HALF
    return ConformalRecord(
        sets=prediction_sets(calibration, tested),
        calibration=kind,
        calibration_examples=len(calibration[1]),
        test_examples=len(tested[1]),
    )


def probabilities(found: Tensor) -> Probabilities:
    """Of class scores."""
    return found.double().softmax(1).numpy()
