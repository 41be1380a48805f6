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

KAPPAS = (
    *(0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08),
    *(round(k / 40, 3) for k in range(4, 21)),
)
"""Up to one half: the paper compares coverage with the accuracy of centralised training, down to 56 %."""


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
