"""CKA and conformal prediction, by their properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.data import datasets
from common.data.batches import Batches
from common.evaluate import evaluate
from common.models.build import build_model
from common.models.spec import ModelSpec
from fedserver.worker.cka import alignment, gram, mean_alignment
from fedserver.worker.conformal import prediction_sets, threshold
from fedserver.worker.similarity import similarity


def cka(first: torch.Tensor, second: torch.Tensor) -> float:
    """CKA of two representations."""
    return alignment(gram(first), gram(second))


def test_cka_of_a_representation_with_itself_is_one() -> None:
    features = torch.randn(40, 3, 5)
    assert cka(features, features) == pytest.approx(1)


def test_cka_does_not_see_orthogonal_transforms_scales_and_shifts() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(50, 12).double(), torch.randn(50, 12).double()
    rotation, _ = torch.linalg.qr(torch.randn(12, 12).double())
    base = cka(first, second)
    assert 0 < base < 0.9
    assert cka(first @ rotation, second) == pytest.approx(base)
    assert cka(3.5 * first + 7, second) == pytest.approx(base)
    assert cka(second, first) == pytest.approx(base)


def test_cka_equals_the_definition_by_features() -> None:
    """||Y'X||^2 / (||X'X|| ||Y'Y||) for centred features."""
    torch.manual_seed(1)
    x, y = (torch.randn(30, n).double() for n in (7, 4))
    x, y = x - x.mean(0), y - y.mean(0)
    direct = (y.T @ x).square().sum() / (torch.linalg.norm(x.T @ x) * torch.linalg.norm(y.T @ y))
    assert cka(x, y) == pytest.approx(direct.item())


def test_constant_representations_and_means_over_pairs() -> None:
    assert cka(torch.ones(5, 3), torch.randn(5, 3)) == 0
    a, b = gram(torch.randn(9, 3)), gram(torch.randn(9, 3))
    assert mean_alignment([a, a, b]) == pytest.approx((1 + 2 * alignment(a, b)) / 3)


def test_models_are_compared_layer_by_layer_one_at_a_time() -> None:
    spec = ModelSpec(name="cnn", num_classes=10, image_shape=(1, 8, 8))
    batches = Batches(datasets.load("digits", "test"))
    same = similarity((build_model(spec, 0) for _ in range(3)), batches, 50)
    assert list(same) == ["features.0", "features.2", "features.6", "classifier"]
    assert all(value == pytest.approx(1) for value in same.values())
    other = similarity((build_model(spec, seed) for seed in range(3)), batches, 50)
    assert all(0 < value < 0.999 for value in other.values())
    assert similarity(iter([build_model(spec, 0)]), batches, 50) == {}


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
