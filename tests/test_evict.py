"""A member that the operator takes out of a run: nothing of it is in c any more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.algorithms import ALGORITHMS
from common.server_step.recount import recounted
from common.server_step.robust import Robustness
from common.tensors.layout import Flat, Layout, TensorSpec
from fedserver.members.seats import Member, example_limit
from tests.killpoint import trap
from tests.processes import Federation, lasting_address
from tests.rules import rules
from tests.test_cli import invoke

LAYOUT = Layout([TensorSpec("w", "float32", (3,)), TensorSpec("b", "float32", (2,))])


def variate(seed: int, size: float = 1.0) -> Flat:
    """Some c_i."""
    flat, random = LAYOUT.allocate(), np.random.default_rng(seed)
    for k in range(2):
        LAYOUT.array(flat, k)[...] = size * random.normal(size=LAYOUT.specs[k].shape)
    return flat


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_c_is_the_mean_of_those_who_are_left_whatever_the_others_had_put_in(weighting: str) -> None:
    rule = rules(num_clients=3, weighting=weighting, total_examples=10.0)
    weights = [1.0, 1.0] if weighting == "uniform" else [2.0, 5.0]
    known = [(weights[i], variate(i)) for i in range(2)]
    for k, tensor in enumerate(recounted(rule, LAYOUT, known)):
        wanted = sum(weight * LAYOUT.array(flat, k).astype(np.float64) for weight, flat in known)
        np.testing.assert_allclose(tensor, wanted / rule.total_weight, rtol=1e-12)


def test_with_a_robust_rule_c_is_the_center_of_those_who_are_left() -> None:
    known = [(1.0, variate(i)) for i in range(3)]
    center = Robustness("median").center()
    assert center is not None
    for k, tensor in enumerate(recounted(rules(num_clients=4, aggregation="median"), LAYOUT, known)):
        stack = np.stack([*(LAYOUT.array(flat, k) for _, flat in known), np.zeros(LAYOUT.specs[k].shape)])
        np.testing.assert_array_equal(tensor, center(stack.astype(np.float64)))
    assert ALGORITHMS["feddyn"].keeps_h
    h = recounted(rules(num_clients=3, algorithm="feddyn", aggregation="median"), LAYOUT, known)
    np.testing.assert_allclose(h[0], np.mean([LAYOUT.array(flat, 0) for _, flat in known], axis=0), rtol=1e-5)


FLAGS = [
    *("--num-clients", "4", "--rounds", "6", "--local-steps", "2", "--seed", "3", "--eval-every", "0"),
    *("--model", "problem:network", "--dataset", "problem:data", "--alpha", "0.5"),
]


@pytest.mark.parametrize("algorithm", ["scaffold", pytest.param("feddyn", marks=pytest.mark.slow)])
def test_an_evicted_member_is_out_of_c_and_of_all_rounds_also_after_a_kill(
    federation: Federation, algorithm: str
) -> None:
    flags = [*FLAGS, "--algorithm", algorithm]
    address = federation.server(*flags, listen=lasting_address(), name="first")
    for name in "abc":
        federation.client(name)
    federation.client("d", through=trap("stop", "before training", 3))
    federation.wait_for_stop("d")
    evicted = invoke("fedserver", "evict", "d", "--server", address)
    assert evicted.exit_code == 0, evicted.output
    federation.wait_for("first", "d leaves: evicted by the operator")
    federation.kill("first")
    federation.server(*flags, listen=address)
    federation.go_on("d")
    assert federation.exit_code("d") != 0
    assert "was evicted from this run by its operator" in federation.log("d")
    for name in "abc":
        assert federation.exit_code(name) == 0
    federation.exit_code("server")
    assert [line["updates"] for line in federation.rounds()] == [4, 4, 3, 3, 3, 3]
    c_is: list[dict[str, Any]] = [
        load_file(path) for path in sorted((federation.folder / "run" / "ledger").glob("client-0000[0-2]-*"))
    ]
    assert len(c_is) == 3
    if algorithm == "scaffold":
        for name, c in federation.tensors("control").items():
            np.testing.assert_allclose(c, np.mean([c_i[name] for c_i in c_is], axis=0), atol=1e-6)


def test_only_members_can_be_evicted(federation: Federation) -> None:
    address = federation.server(*FLAGS)
    result = invoke("fedserver", "evict", "nobody", "--server", address)
    assert result.exit_code == 1
    assert "'nobody' has not joined this run" in result.output


def test_claims_of_examples_count_up_to_ten_times_the_median_or_the_largest_shard() -> None:
    shards = [range(30), range(40), range(500), range(20)]
    honest = [Member(str(i), i, len(shards[i]), shards[i]) for i in range(3)]
    boaster = Member("boaster", 3, 2**64 - 1, None)
    assert example_limit([*honest, boaster], shards) == 500
    assert example_limit([*honest[:2], boaster], [*shards[:2], range(45)]) == 400
    limited = rules(weighting="examples", example_limit=450.0)
    assert limited.client_weight(boaster.examples) == 450
    assert limited.client_weight(40) == 40
    assert rules(weighting="examples").client_weight(40) == 40
