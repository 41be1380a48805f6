"""What prediction sets are calibrated on: the examples that clients keep aside, or half of the test set."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.data import datasets
from common.data.batches import Batches
from common.errors import ConfigError
from common.evaluate import scores
from common.events import unheard
from common.models.build import build_model
from common.models.spec import ModelSpec
from common.records.conformal import ConformalRecord, read_conformal
from fedclient.training.minibatches import Minibatches
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.run.run import rules_of
from fedserver.worker.analyses.calibration import HeldOut, conformal
from fedserver.worker.analyses.conformal import KAPPAS
from fedserver.worker.training_data import shards_of, shares
from fedserver.worker.worker import Worker

CONFIG = RunConfig(num_clients=3, rounds=1, local_steps=2, validation=0.2, alpha=0.3, model="mlp")
TEST = 360


def simulated(folder: Path, **settings: Any) -> ConformalRecord:
    """The prediction sets of a run that differs in some settings."""
    simulate(replace(CONFIG, **settings), folder, unheard)
    return read_conformal(folder)


def test_the_server_finds_the_examples_that_each_client_keeps_aside() -> None:
    train = datasets.load("digits", "train")
    shards = shards_of(CONFIG, train.labels)
    found, rules = shares(CONFIG, shards), rules_of(CONFIG, 1, False, 0)
    for i, shard in enumerate(shards):
        own, aside = Minibatches(Batches(train.subset(shard)), CONFIG.seed, i).split(rules)
        assert found.held_out[found.owners == i].tolist() == shard[aside].tolist()
        assert set(shard[own]) <= set(found.trained_on)
    assert not set(found.held_out) & set(found.trained_on)


def test_what_clients_keep_aside_calibrates_and_the_whole_test_set_tests(tmp_path: Path) -> None:
    record = simulated(tmp_path / "run")
    kept = sum(round(0.2 * n) for n in [1437 // 3] * 3)
    assert (record.calibration, record.calibration_examples) == ("validation", kept)
    assert record.test_examples == TEST


@pytest.mark.parametrize("settings", [{"validation": 0.0}, {"calibration": "test-half"}], ids=str)
def test_half_of_the_test_set_calibrates_where_it_must_or_is_told_to(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    record = simulated(tmp_path / "run", **settings)
    assert (record.calibration, record.calibration_examples) == ("test-half", TEST // 2)
    assert record.test_examples == TEST - TEST // 2


def test_coverage_goes_down_to_one_half(tmp_path: Path) -> None:
    """So that it crosses accuracies of which not even centralised training has more."""
    record = simulated(tmp_path / "run", rounds=3, local_steps=20)
    kappas = [sets.kappa for sets in record.sets]
    assert kappas == sorted(set(kappas)) == list(KAPPAS)
    assert max(kappas) == 0.5
    for sets in record.sets:
        assert sets.coverage == pytest.approx(1 - sets.kappa, abs=0.12)


def test_only_clients_with_a_shard_keep_what_the_server_has() -> None:
    """Data of a client's own never leave it; if nobody has a shard, the test set is all there is."""
    test, train = (Batches(datasets.load("digits", split)) for split in ("test", "train"))
    model = build_model(ModelSpec(name="mlp", num_classes=10, image_shape=(1, 8, 8)), 0)
    score = partial(scores, model)
    found = score(test, torch.arange(len(test)))
    held_out = HeldOut(train, np.arange(len(train)) % 3)
    counts = {
        clients: conformal(score, test, found, held_out, clients, seed=0) for clients in ((0, 1, 2), (1,), ())
    }
    assert [each.calibration for each in counts.values()] == ["validation", "validation", "test-half"]
    assert [each.calibration_examples for each in counts.values()] == [1437, 479, TEST // 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"calibration": "validation"}, "--calibration validation needs examples"),
        (
            {"calibration": "test-half", "input_shape": "1x8x8", "dataset": "none", "classes": ("a", "b")},
            "--calibration needs data at the server",
        ),
        ({"calibration": "train"}, "--calibration must be one of validation, test-half"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings)  # type: ignore[arg-type]


def test_a_share_that_keeps_nothing_is_refused_if_it_was_asked_for() -> None:
    with pytest.raises(ConfigError, match="keeps nothing of shards of 14 examples"):
        Worker().prepare(RunConfig(num_clients=100, validation=0.01, calibration="validation"))
