"""Conformal prediction and accuracy by class, by their properties."""

from __future__ import annotations

import numpy as np
import pytest

from common.data import datasets
from common.data.batches import Batches
from common.evaluate import evaluate
from common.models.build import build_model
from common.models.spec import ModelSpec
from fedserver.worker.analyses.conformal import prediction_sets, threshold


def sample(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a mediocre model, and labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 8, n)
    scores = random.normal(size=(n, 8))
    scores[np.arange(n), labels] += 1.0
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(1, keepdims=True), labels


def test_prediction_sets_cover_as_promised_on_new_data() -> None:
    """On average over calibrations the coverage is at least 1 - kappa, and not much more."""
    kappas = (0.05, 0.1, 0.3)
    trials = [prediction_sets(sample(300, 2 * t), sample(1000, 2 * t + 1), kappas) for t in range(30)]
    for k, kappa in enumerate(kappas):
        mean = np.mean([trial[k].coverage for trial in trials])
        assert 1 - kappa - 0.01 < mean < 1 - kappa + 0.02


def test_smaller_kappa_means_larger_sets() -> None:
    found = prediction_sets(sample(500, 0), sample(500, 1), (0.01, 0.1, 0.3))
    sizes = [sets.mean_size for sets in found]
    assert sizes == sorted(sizes, reverse=True)
    assert all(1 - sets.kappa - 0.06 < sets.coverage for sets in found)


def test_too_few_examples_to_promise_anything_give_full_sets() -> None:
    probabilities, labels = sample(5, 0)
    assert threshold(probabilities, labels, 0.1) == 0.0


def test_accuracy_per_class_adds_up() -> None:
    spec = ModelSpec(name="cnn", num_classes=12, image_shape=(1, 8, 8))
    test = datasets.load("digits", "test")
    result = evaluate(build_model(spec, 0), Batches(test))
    assert result.class_accuracy[10:] == (None, None)
    counts = np.bincount(test.labels)
    known = [a for a in result.class_accuracy if a is not None]
    assert np.dot(known, counts) / counts.sum() == pytest.approx(result.accuracy)
