"""Area under the ROC curve, as a count of pairs, and its interval."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Z = 1.959963984540054
"""Of a 95 % interval."""


def won_pairs(scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> int:
    """Twice the pairs of a positive and a negative example in which the positive one has the higher score.

    A tie counts once. Of all 2 P N this is the area under the curve, exactly.
    """
    ours, theirs = scores[positive], np.sort(scores[~positive])
    below, not_above = (np.searchsorted(theirs, ours, side) for side in ("left", "right"))
    return int(below.sum()) + int(not_above.sum())


def pairs_by_class(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Of each class against the rest; of two classes only of the second, because the first says the same."""
    chosen = range(1, 2) if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    return tuple(won_pairs(probabilities[:, k], labels == k) for k in chosen)


def interval(area: float, positives: int, negatives: int) -> tuple[float, float]:
    """95 % interval of an area (J. Hanley, B. McNeil: Radiology 143, 1982), from the numbers alone.

    It is symmetric, cut off at 0 and 1, and has no width where the classes are apart: look at the support.
    """
    q1, q2 = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (positives - 1) * (q1 - area * area) + (negatives - 1) * (q2 - area * area)
    half = Z * math.sqrt(max(spread, 0.0) / (positives * negatives))
    return max(area - half, 0.0), min(area + half, 1.0)
