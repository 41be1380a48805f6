"""The head gap: a logistic regression on x's features against the classifier of x."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common.data import datasets
from common.data.batches import Batches
from common.errors import ConfigError
from common.evaluate import judged
from common.events import unheard
from common.models.build import build_model
from common.models.spec import ModelSpec
from common.records.rounds import read_rounds
from fedlab.reports.report import write_report
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.worker.analyses.logistic import L2, Regression, regression
from fedserver.worker.analyses.probe import Probe, chosen, features_to, require_features
from tests.killpoint import trap
from tests.processes import Federation, lasting_address

SPEC = ModelSpec(name="cnn", num_classes=10, image_shape=(1, 8, 8))


@pytest.fixture(scope="module")
def pool() -> Batches:
    """Training images."""
    return Batches(datasets.load("digits", "train"))


@pytest.fixture(scope="module")
def test() -> Batches:
    """Test images."""
    return Batches(datasets.load("digits", "test"))


def features(model: nn.Module, batches: Batches) -> Tensor:
    """What the model's classifier gets."""
    found: list[Tensor] = []
    with features_to(found.append, model), torch.inference_mode():
        model.eval()(batches.batch(torch.arange(len(batches)))[0])
    return torch.cat(found)


def with_head(model: nn.Module, head: Regression) -> nn.Module:
    """The model with this classifier."""
    weight = head.weight[:-1] / head.spread[:, None]
    with torch.no_grad():
        model.classifier.weight.copy_(weight.T)  # type: ignore[union-attr, operator]
        model.classifier.bias.copy_(head.weight[-1] - head.mean @ weight)  # type: ignore[union-attr, operator]
    return model


def gap(model: nn.Module, pool: Batches, test: Batches) -> float:
    """Accuracy of the probe less that of the model."""
    found, accuracy = Probe(pool, 10).judged(model, test)
    assert accuracy is not None
    return accuracy - judged(found, test.labels).accuracy


def test_a_classifier_that_is_the_probes_own_solution_has_no_gap(pool: Batches, test: Batches) -> None:
    model = build_model(SPEC, 0)
    head = regression(features(model, pool), pool.labels, 10)
    assert head is not None
    assert abs(gap(with_head(model, head), pool, test)) <= 1 / len(test)


def test_a_classifier_that_mistakes_one_class_for_another_has_a_large_gap(
    pool: Batches, test: Batches
) -> None:
    model = build_model(SPEC, 0)
    head = regression(features(model, pool), pool.labels, 10)
    assert head is not None
    shuffled = Regression(head.mean, head.spread, head.weight.roll(1, 1))
    assert gap(with_head(model, shuffled), pool, test) > 0.7


def test_the_probe_is_the_same_to_the_bit_and_leaves_the_scores_as_they_are(
    pool: Batches, test: Batches
) -> None:
    model = build_model(SPEC, 0)
    first, again = (Probe(pool, 10).judged(model, test) for _ in range(2))
    assert first[1] == again[1]
    one, other = (regression(features(model, pool), pool.labels, 10) for _ in range(2))
    assert one is not None
    assert other is not None
    assert torch.equal(one.weight, other.weight)
    with torch.inference_mode():
        parts = torch.split(torch.arange(len(test)), 100)
        plain = torch.cat([model(test.batch(part)[0]) for part in parts])
    assert torch.equal(first[0], plain)


def test_the_solution_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 400)
    inputs = random.normal(size=(400, 12)) * 3 + 1
    inputs[np.arange(400), labels] += 3.0
    inputs[:, -1] = 7.0  # A feature that is dead.
    found = regression(torch.from_numpy(inputs), torch.from_numpy(labels), 5)
    assert found is not None
    scaled = (inputs - found.mean.numpy()) / found.spread.numpy()
    from sklearn.linear_model import LogisticRegression  # A second, for this test alone.

    theirs = LogisticRegression(C=1 / (L2 * 400), tol=1e-8, max_iter=5000).fit(scaled, labels)
    ours = found.scores(torch.from_numpy(inputs)).softmax(1).numpy()
    np.testing.assert_allclose(ours, theirs.predict_proba(scaled), atol=2e-3)


def test_features_that_are_not_finite_have_no_probe(pool: Batches, test: Batches) -> None:
    model = build_model(SPEC, 0)
    with torch.no_grad():
        model.features[0].weight.fill_(1e38)  # type: ignore[index, union-attr]
    assert Probe(pool, 10).judged(model, test)[1] is None


def test_examples_are_of_the_pool_and_balanced_as_it_is() -> None:
    labels = np.repeat(np.arange(4), [400, 200, 200, 200])
    pool = np.arange(0, 1000, 2)
    found = chosen(labels, pool, 100, seed=3)
    assert set(found) <= set(pool)
    assert len(set(found)) == 100
    assert np.bincount(labels[found]).tolist() == [40, 20, 20, 20]
    assert chosen(labels, pool, 100, seed=3).tolist() == found.tolist()
    assert chosen(labels, pool, 100, seed=4).tolist() != found.tolist()
    assert sorted(chosen(labels, pool, 10_000, seed=3)) == pool.tolist()


def test_features_of_a_classifier_of_several_layers_are_those_before_the_first() -> None:
    spec = ModelSpec(name="vgg11", num_classes=10, image_shape=(3, 32, 32), width=0.125)
    model, found = build_model(spec, 0), list[Tensor]()
    images = torch.randn(2, 3, 32, 32)
    with features_to(found.append, model), torch.inference_mode():
        model.eval()(images)
        (seen,) = found
        expected = model.features(images).flatten(1)  # type: ignore[operator]
    torch.testing.assert_close(seen, expected.double())


class InPlace(nn.Module):
    """Its classifier begins with something that overwrites what it gets."""

    classifier_modules = ("head",)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))

    def forward(self, images: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.head(self.body(images))
        return scores


def test_features_are_those_that_the_classifier_got() -> None:
    model, found, images = InPlace().double(), list[Tensor](), torch.randn(50, 3).double()
    with features_to(found.append, model), torch.inference_mode():
        model(images)
        assert torch.equal(found[0], model.body(images))


class Rootless(nn.Module):
    """Does not tell which of its parameters classify."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(3, n)) for n in (3, 2))

    def forward(self, images: Tensor) -> Tensor:
        """Scores."""
        return images @ self.first @ self.second


def test_a_model_that_does_not_tell_its_classifier_is_refused() -> None:
    with pytest.raises(ConfigError, match="--probe needs what the classifier of model mine gets"):
        require_features(Rootless(), torch.randn(2, 3), "mine")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probe": -1}, "--probe must not be negative, got -1"),
        ({"probe": 10, "personal": ("classifier",)}, "--probe evaluates x"),
        (
            {"probe": 10, "input_shape": "1x8x8", "dataset": "none", "classes": ("a", "b")},
            "--probe needs data at the server, which a task has not",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings)  # type: ignore[arg-type]


def test_a_server_that_is_killed_finds_the_same_gaps_and_sets(federation: Federation, tmp_path: Path) -> None:
    """As a simulation does, in which nobody is killed; a run that goes on evaluates what was left."""
    settings = {"num_clients": 2, "rounds": 3, "local_steps": 4, "validation": 0.2, "probe": 300}
    config = RunConfig(model="mlp", eta_l=0.3, **settings)  # type: ignore[arg-type]
    simulate(config, tmp_path / "simulated", unheard)
    pairs = [("--" + name.replace("_", "-"), str(value)) for name, value in settings.items()]
    flags = ["--model", "mlp", "--eta-l", "0.3", *(part for pair in pairs for part in pair)]
    listen = lasting_address()
    federation.server(*flags, listen=listen, through=trap("kill", "before the record", 2))
    for name in ("client-0", "client-1"):
        federation.client(name)
    federation.wait_for_death("server")
    federation.server(*flags, listen=listen)
    federation.finish()
    run = federation.folder / "run"
    theirs, ours = read_rounds(tmp_path / "simulated"), read_rounds(run)
    assert [each.probe_accuracy for each in ours] == [each.probe_accuracy for each in theirs]
    for each in ours:
        assert each.probe_accuracy is not None
        assert each.accuracy is not None
        assert each.head_gap == each.probe_accuracy - each.accuracy
    sets = [(path / "conformal.json").read_text() for path in (run, tmp_path / "simulated")]
    assert sets[0] == sets[1]
    assert '"calibration": "validation"' in sets[0]
    write_report([run], tmp_path / "report.html", "10Mbit")
    page = (tmp_path / "report.html").read_text()
    assert "head gap" in page
    assert "what clients kept aside" in page
