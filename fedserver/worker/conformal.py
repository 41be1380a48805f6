"""Conformal prediction sets: all classes whose predicted probability reaches a threshold.

The threshold tau is chosen on a calibration set such that a new example's class is in its set with a
probability of at least 1 - kappa, whatever the model (split conformal prediction). Small sets at the same
coverage mean a better model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.records.conformal import PredictionSets

Probabilities = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

KAPPAS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Up to where coverage is below the accuracy of any model of the paper."""


def threshold(probabilities: Probabilities, labels: Labels, kappa: float) -> float:
    """tau: the floor(kappa * (n + 1))-th smallest probability of a right class; 0 if n is too small."""
    right = np.sort(probabilities[np.arange(len(labels)), labels])
    rank = int(np.floor(kappa * (len(labels) + 1)))
    return float(right[rank - 1]) if rank else 0.0


def prediction_sets(
    calibration: tuple[Probabilities, Labels],
    test: tuple[Probabilities, Labels],
    kappas: Sequence[float] = KAPPAS,
) -> tuple[PredictionSets, ...]:
    """Coverage and size of the sets for every kappa."""
    probabilities, labels = test
    found = []
    for kappa in kappas:
        tau = threshold(*calibration, kappa)
        members = probabilities >= tau
        coverage, size = members[np.arange(len(labels)), labels].mean(), members.sum(1).mean()
        found.append(PredictionSets(kappa=kappa, tau=tau, coverage=float(coverage), mean_size=float(size)))
    return tuple(found)
