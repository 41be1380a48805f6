"""The Dirichlet partition: the published draws, and what holds for any."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data.partition_file import read_partition, write_partition
from common.errors import ConfigError, DataError
from fedserver.config import RunConfig
from fedserver.worker import partition
from fedserver.worker.partition import class_counts, dirichlet_partition
from fedserver.worker.training_data import shards_of


@pytest.mark.parametrize(
    ("n", "num_clients", "sizes", "start", "digest"),
    [
        (
            45_000,
            10,
            [3463, 4891, 5343, 6441, 2671, 4729, 6144, 2430, 4258, 4630],
            [34221, 421, 1921, 37481, 3071],
            ("c2cb82db7428a5c6", "e756a339"),
        ),
        (2_000, 4, [632, 490, 544, 334], [350, 110, 500, 720, 1260], ("07290cfaa7edc4f5", "db03a45e8")),
    ],
)
def test_the_draws_are_those_of_the_published_code(
    n: int, num_clients: int, sizes: list[int], start: list[int], digest: tuple[str, str]
) -> None:
    shards = dirichlet_partition(np.arange(n) % 10, num_clients, 0.1, 7, equal=False)
    assert [len(shard) for shard in shards] == sizes
    assert shards[0][:5].tolist() == start
    found = hashlib.sha256(np.concatenate(shards).astype("<i8").tobytes()).hexdigest()
    assert (found[:16], found[-len(digest[1]) :]) == digest


@given(
    st.integers(1, 400),
    st.integers(1, 30),
    st.floats(0.001, 100),
    st.integers(0, 99),
    st.integers(1, 12),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_shards_are_disjoint_and_none_is_empty(
    n: int, num_clients: int, alpha: float, seed: int, num_classes: int, equal: bool
) -> None:
    num_clients = min(num_clients, n)
    labels = np.random.default_rng(seed).integers(0, num_classes, n)
    shards = dirichlet_partition(labels, num_clients, alpha, seed, equal=equal)
    together = np.concatenate(shards)
    assert len(shards) == num_clients
    assert min(map(len, shards)) >= 1
    assert len(set(together.tolist())) == len(together)
    if equal:
        assert {len(shard) for shard in shards} == {n // num_clients}
    else:
        assert sorted(together.tolist()) == list(range(n))
        assert min(map(len, shards)) >= int(0.5 * n / num_clients)


def test_where_drawing_would_go_on_for_ever_the_shards_are_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "MAX_ATTEMPTS", 100)
    labels = np.arange(45_000) % 10
    first = dirichlet_partition(labels, 20, 0.1, 2, equal=False)
    assert min(map(len, first)) >= int(0.5 * 45_000 / 20)
    again = dirichlet_partition(labels, 20, 0.1, 2, equal=False)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))


def test_small_alpha_means_few_classes_and_large_alpha_all() -> None:
    labels = np.arange(10_000) % 10
    few, many = (
        np.mean(class_counts(dirichlet_partition(labels, 10, alpha, 0, equal=False), labels, 10) > 50)
        for alpha in (0.05, 100.0)
    )
    assert few < 0.5 < 0.95 < many


def test_one_hundred_clients_are_drawn_in_groups() -> None:
    labels = np.arange(50_000) % 10
    shards = dirichlet_partition(labels, 100, 0.1, 0, equal=False)
    assert len(shards) == 100
    assert min(map(len, shards)) >= 250


@pytest.mark.parametrize(
    ("num_clients", "alpha", "message"),
    [
        (0, 0.1, "--num-clients must be at least 1"),
        (5, 0.0, "--alpha must be positive, got 0.0"),
        (5, -1.0, "--alpha must be positive"),
        (5, float("nan"), "--alpha must be positive"),
        (11, 0.1, "--num-clients is 11, but there are only 10 examples"),
    ],
)
def test_settings_that_cannot_work_are_named(num_clients: int, alpha: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dirichlet_partition(np.arange(10) % 2, num_clients, alpha, 0)


def test_a_partition_file_comes_back(tmp_path: Path) -> None:
    shards = dirichlet_partition(np.arange(100) % 5, 3, 0.5, 1)
    write_partition(tmp_path / "p.json", shards)
    assert json.loads((tmp_path / "p.json").read_text()).keys() == {"clients"}
    for a, b in zip(shards, read_partition(tmp_path / "p.json", 3, 100), strict=True):
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "expected JSON .*; this is no JSON"),
        ("[[0, 1], [2, 3]]", r"a list of indices for each client; got a list$"),
        ('{"shards": []}', r"for each client; got an object without `clients`$"),
        ('{"clients": 3}', "expected shards for 2 clients"),
        ('{"clients": [[1]]}', "expected shards for 2 clients .*got 1"),
        ('{"clients": [[1], []]}', "shard 1 must be a list of at least one"),
        ('{"clients": [[1], [10]]}', "shard 1 has index 10; expected 0 to 9"),
        ('{"clients": [[1], [-1]]}', "has index -1"),
        ('{"clients": [[1], [true]]}', "has index True"),
        ('{"clients": [[1], ["x"]]}', "has index 'x'"),
    ],
)
def test_a_bad_partition_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_partition(tmp_path / "p.json", 2, 10)


def test_a_run_cuts_shards_into_one_size_unless_told_otherwise() -> None:
    """As drawn, every example is used and clients of a round take different numbers of steps."""
    labels = np.arange(1_437) % 10
    config = RunConfig(num_clients=5, alpha=0.1)
    drawn = shards_of(replace(config, equal_shards=False), labels)
    assert {len(shard) for shard in shards_of(config, labels)} == {287}
    assert len({len(shard) for shard in drawn}) > 1
    assert sorted(np.concatenate(drawn)) == list(range(1_437))


def test_shards_that_are_given_are_not_cut(tmp_path: Path) -> None:
    write_partition(tmp_path / "p.json", [np.arange(3), np.arange(3, 9)])
    with pytest.raises(ConfigError, match="--no-equal-shards is for shards that the server draws"):
        RunConfig(num_clients=2, partition=str(tmp_path / "p.json"), equal_shards=False)
