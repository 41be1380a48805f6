"""CKA between models: the estimate by its properties, and what a run records of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.data import datasets
from common.data.batches import Batches
from common.events import unheard
from common.models.build import build_model
from common.models.spec import ModelSpec
from common.records.cka import CKA, CkaRecord, Matrix
from fedlab.reports.runs import read_run
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.worker.analyses.cka import BLOCK, ESTIMATORS, alignment, gram, products, u_centred
from fedserver.worker.analyses.similarity import MINIBATCH, minibatches, similarity
from tests.killpoint import trap
from tests.processes import Federation, lasting_address

SPEC = ModelSpec(name="cnn", num_classes=10, image_shape=(1, 8, 8))
USUAL = 512
"""Images that docs/settings.md names."""


def cka(first: Tensor, second: Tensor, estimator: str = "debiased") -> float:
    """CKA of two representations of the same images, in the minibatches that models are compared in."""
    parts = minibatches(len(first), len(first), estimator)
    centre = ESTIMATORS[estimator]
    sums = [products([centre(gram(each[part])) for each in (first, second)]) for part in parts]
    return alignment(torch.stack(sums).sum(0))[0, 1].item()


@pytest.mark.parametrize("features", [512, 4096, pytest.param(65_536, marks=pytest.mark.slow)])
def test_unrelated_representations_are_not_alike_however_wide(features: int) -> None:
    """The biased estimate finds them alike, and the wider the more: that is what the default is for."""
    torch.manual_seed(features)
    first, second = torch.randn(USUAL, features), torch.randn(USUAL, features)
    assert abs(cka(first, second)) < 0.02
    assert cka(first, second, "biased") > 0.4


def test_the_estimate_of_unrelated_representations_has_mean_zero() -> None:
    torch.manual_seed(0)
    found = torch.tensor([cka(torch.randn(64, 100), torch.randn(64, 100)) for _ in range(200)])
    assert abs(found.mean()) < 4 * found.std() / len(found) ** 0.5
    assert found.min() < 0 < found.max()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_representation_is_exactly_like_itself(estimator: str) -> None:
    features = torch.randn(300, 3, 5)
    assert cka(features, features, estimator) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_orthogonal_transforms_scales_and_shifts_are_not_seen(estimator: str) -> None:
    torch.manual_seed(0)
    first = torch.randn(400, 12).double()
    second = first @ torch.randn(12, 12).double() + torch.randn(400, 12)
    rotation, _ = torch.linalg.qr(torch.randn(12, 12).double())
    base = cka(first, second, estimator)
    assert 0.1 < base < 0.9
    assert cka(first @ rotation, second, estimator) == pytest.approx(base)
    assert cka(3.5 * first + 7, second, estimator) == pytest.approx(base)
    assert cka(second, first, estimator) == pytest.approx(base)


def test_the_biased_estimate_equals_the_definition_by_features() -> None:
    """||Y'X||^2 / (||X'X|| ||Y'Y||) for centred features."""
    torch.manual_seed(1)
    x, y = (torch.randn(30, n).double() for n in (7, 4))
    x, y = x - x.mean(0), y - y.mean(0)
    direct = (y.T @ x).square().sum() / (torch.linalg.norm(x.T @ x) * torch.linalg.norm(y.T @ y))
    assert cka(x, y, "biased") == pytest.approx(direct.item())


def test_products_are_the_unbiased_hsic_of_song_and_others() -> None:
    """The terms of their equation 5, with K and L without their diagonals."""
    torch.manual_seed(2)
    n = 20
    matrices = [gram(torch.randn(n, 5)), gram(torch.randn(n, 6))]
    k, m = (each - torch.diag(each.diagonal()) for each in matrices)
    sums = k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 * (k @ m).sum() / (n - 2)
    direct = ((k @ m).trace() + sums) / (n * (n - 3))
    assert products([u_centred(each) for each in matrices])[0, 1].item() == pytest.approx(direct.item())


def test_wide_representations_are_read_block_by_block() -> None:
    features = torch.randn(6, BLOCK + 11)
    whole = features.double() - features.double().mean(0)
    torch.testing.assert_close(gram(features), whole @ whole.T)


def test_constant_representations_are_like_nothing() -> None:
    assert cka(torch.ones(5, 3), torch.randn(5, 3)) == 0
    assert cka(torch.ones(5, 3), torch.randn(5, 3), "biased") == 0


@pytest.mark.parametrize(("available", "wanted"), [(360, 50), (360, 1000), (10_000, 700), (1000, 512)])
def test_images_are_spread_over_all_and_so_is_each_minibatch(available: int, wanted: int) -> None:
    parts = minibatches(available, wanted, "debiased")
    together = sorted(torch.cat(parts).tolist())
    assert len(set(together)) == len(together) == min(available, wanted)
    sizes = [len(part) for part in parts]
    assert max(sizes) <= MINIBATCH
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        gaps = part.diff()
        assert gaps.max() - gaps.min() <= len(parts), "no stretch is left out"
    (one,) = minibatches(available, wanted, "biased")
    assert sorted(one.tolist()) == together


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_models_are_compared_pair_by_pair_and_layer_by_layer(estimator: str) -> None:
    batches = Batches(datasets.load("digits", "test"))
    same = similarity(lambda: (build_model(SPEC, 0) for _ in range(3)), batches, 300, estimator)
    assert list(same.layers) == ["features.0", "features.2", "features.6", "classifier"]
    assert (same.images, same.minibatches) == (300, 2 if estimator == "debiased" else 1)
    for matrix in same.layers.values():
        assert [value for row in matrix for value in row] == [pytest.approx(1)] * 9
    other = similarity(lambda: (build_model(SPEC, seed) for seed in range(3)), batches, 300, estimator)
    for matrix in other.layers.values():
        assert [matrix[k][k] for k in range(3)] == [pytest.approx(1)] * 3
        assert all(matrix[i][k] == pytest.approx(matrix[k][i]) for i in range(3) for k in range(3))
        assert all(0 < (matrix[i][k] or 0) < 0.999 for i in range(3) for k in range(i))


def test_means_are_over_pairs_and_not_of_a_client_with_itself() -> None:
    layers: dict[str, Matrix] = {
        "a": ((1.0, 0.2, 0.4), (0.2, 1.0, 0.9), (0.4, 0.9, 1.0)),
        "b": ((1.0, None), (None, 1.0)),
    }
    record = CkaRecord(
        round=1, estimator="debiased", images=4, minibatches=1, clients=("x", "y"), layers=layers
    )
    assert record.means() == {"a": pytest.approx(0.5), "b": None}


def test_a_run_records_the_pairs_beside_their_means(tmp_path: Path) -> None:
    config = RunConfig(num_clients=3, rounds=4, local_steps=2, eval_every=2, cka=100, model="mlp")
    simulate(config, tmp_path / "run", unheard)
    run = read_run(tmp_path / "run")
    lines = list(run.cka())
    assert [line.round for line in lines] == [2, 4]
    for line in lines:
        assert (line.estimator, line.images, line.minibatches) == ("debiased", 100, 1)
        assert line.clients == ("client-0", "client-1", "client-2")
        assert line.means() == run.rounds[line.round - 1].cka
        assert all(len(matrix) == 3 == len(matrix[0]) for matrix in line.layers.values())
    simulate(RunConfig(num_clients=1, rounds=1, local_steps=1), tmp_path / "without", unheard)
    assert not (tmp_path / "without" / CKA).exists()
    assert list(read_run(tmp_path / "without").cka()) == []


def test_a_server_that_is_killed_has_each_round_in_it_once(federation: Federation) -> None:
    flags = ["--model", "mlp", "--num-clients", "2", "--rounds", "3", "--local-steps", "2", "--cka", "40"]
    listen = lasting_address()
    federation.server(*flags, listen=listen, through=trap("kill", "before the traffic", 2))
    for name in ("a", "b"):
        federation.client(name)
    federation.wait_for_death("server")
    federation.server(*flags, listen=listen)
    federation.finish()
    assert [line.round for line in read_run(federation.folder / "run").cka()] == [1, 2, 3]
