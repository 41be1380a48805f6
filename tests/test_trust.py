"""Updates that do not deserve trust: left out, or outvoted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from common.errors import ConfigError, RunError
from common.server_step import aggregate
from common.server_step.moves import Moves
from common.server_step.robust import Robustness, trimmed_mean
from common.server_step.step import ServerStep
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from fedclient.training.task import Task, Update
from fedclient.training.train import Trainer
from fedlab.simulate import simulate
from fedserver.config import RunConfig
from tests.rules import rules

LAYOUT = Layout(
    [
        TensorSpec("w", "float32", (5,)),
        TensorSpec("mean", "float32", (2,), Purpose.BUFFER),
        TensorSpec("w", "float32", (5,), Purpose.CONTROL),
    ]
)
RULES = ["median", "trimmed:0.2", "trimmed:0.4"]
HONEST = arrays(np.float64, (5, 12), elements=st.floats(-1, 1))
WILD = arrays(np.float64, (2, 12), elements=st.floats(-1e30, 1e30))


def flat(numbers: Any) -> Flat:
    """All tensors of a buffer from twelve numbers."""
    buffer, at = LAYOUT.allocate(), 0
    for k, spec in enumerate(LAYOUT.specs):
        LAYOUT.array(buffer, k)[...] = numbers[at : at + spec.num_elements]
        at += spec.num_elements
    return buffer


def numbers(buffer: Flat) -> Any:
    """And back."""
    return np.concatenate([LAYOUT.array(buffer, k).reshape(-1) for k in range(len(LAYOUT.specs))])


def step(rule: str, updates: Any, x: Any) -> Any:
    """The next x, buffers and c from updates of all clients, whose c_i were zero."""
    rule_of_all = rules(aggregation=rule, num_clients=len(updates))
    reader = UpdateReader(rule_of_all, LAYOUT, flat(x))
    server = ServerStep(rule_of_all, LAYOUT, flat(x), exact=False)  # So that c comes from the c_i.
    for i, update in enumerate(updates):
        server.add(i, reader.read(flat(update), None, 1, 1))
    return numbers(server.close().flat)


@pytest.mark.parametrize("rule", ["median", "trimmed:0.3"])
@given(honest=HONEST, wild=WILD)
def test_two_of_seven_cannot_push_any_number_beyond_what_the_others_say(
    rule: str, honest: Any, wild: Any
) -> None:
    x = np.zeros(12)
    new = step(rule, np.concatenate([honest, wild]), x)
    assert np.all(new >= honest.min(axis=0) - 1e-6)
    assert np.all(new <= honest.max(axis=0) + 1e-6)


@pytest.mark.parametrize("rule", RULES)
@given(honest=HONEST, order=st.permutations(range(5)))
def test_the_order_of_updates_does_not_matter(rule: str, honest: Any, order: list[int]) -> None:
    x = honest[0]
    np.testing.assert_array_equal(step(rule, honest, x), step(rule, honest[order], x))


@pytest.mark.parametrize("rule", ["mean", *RULES])
def test_what_all_say_is_what_comes_out(rule: str) -> None:
    update = np.linspace(-1, 1, 12).astype(np.float32)
    np.testing.assert_allclose(step(rule, [update] * 5, np.zeros(12)), update, rtol=1e-6)


@given(honest=HONEST, wild=st.floats(-1e30, 1e30))
def test_a_trimmed_mean_cuts_one_at_least(honest: Any, wild: float) -> None:
    stack = np.concatenate([honest, np.full((1, 12), wild)])
    kept = np.sort(stack, axis=0)[1:-1].mean(axis=0)
    np.testing.assert_allclose(trimmed_mean(stack, 0.01), kept, atol=1e-12)
    np.testing.assert_allclose(trimmed_mean(honest[:2], 0.4), honest[:2].mean(axis=0), atol=1e-12)


def test_elements_are_handled_in_pieces_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = np.random.default_rng(0).normal(size=(5, 12))
    whole = step("median", updates, np.zeros(12))
    monkeypatch.setattr(aggregate, "STACK_ELEMENTS", 10)
    np.testing.assert_array_equal(step("median", updates, np.zeros(12)), whole)


def test_norms_are_those_of_the_moves_of_parameters_buffers_and_variates() -> None:
    update, before = np.arange(12.0), np.ones(5, np.float32).view(np.uint8)
    norms = Moves(LAYOUT, flat(np.zeros(12))).norms(flat(update), before)
    assert norms[Purpose.MODEL] == pytest.approx(np.linalg.norm(update[:5]))
    assert norms[Purpose.BUFFER] == pytest.approx(np.linalg.norm(update[5:7]))
    assert norms[Purpose.CONTROL] == pytest.approx(np.linalg.norm(update[7:] - 1))


def test_updates_far_above_the_median_are_left_out() -> None:
    norms = {k: {Purpose.MODEL: norm} for k, norm in enumerate([1.0, 1.2, 0.8, 30.0])}
    assert Robustness(norm_bound=5.0).outliers(norms) == {3: pytest.approx(30 / 1.1)}
    assert Robustness().outliers(norms) == {}
    still = {k: {Purpose.MODEL: norm} for k, norm in enumerate([0.0, 0.0, 1.0])}
    assert Robustness(norm_bound=5.0).outliers(still) == {2: math.inf}
    assert Robustness(norm_bound=2.0).outliers({}) == {}
    sly = {k: {Purpose.MODEL: 1.0, Purpose.CONTROL: c} for k, c in enumerate([1.0, 1.0, 1e30])}
    assert list(Robustness(norm_bound=5.0).outliers(sly)) == [2], "an ordinary y_i hides no wild c_i"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregation": "best"}, "--aggregation must be mean, median or trimmed:F"),
        ({"aggregation": "trimmed:0.5"}, "--aggregation must be mean, median or trimmed:F"),
        ({"aggregation": "trimmed:x"}, "--aggregation must be mean, median or trimmed:F"),
        ({"aggregation": "median", "weighting": "examples"}, "goes with --weighting uniform only"),
        ({"norm_bound": 1.0}, "--norm-bound must be above 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings)


FIVE: dict[str, Any] = {
    "num_clients": 5,
    "rounds": 4,
    "local_epochs": 2,
    "alpha": 100.0,
    "eta_l": 0.2,
    "momentum": 0.5,
}


class Traitor:
    """In place of the fifth client's training: the opposite of what it learned, a hundred times over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        honest = Trainer.train

        def train(trainer: Trainer, task: Task, state: Flat) -> Update:
            update = honest(trainer, task, state)
            if trainer._index == 4:
                for k in task.layout.indices(Purpose.MODEL):
                    x, y = (task.layout.array(buffer, k) for buffer in (task.broadcast, update.payload))
                    y[...] = x - 100 * (y - x)
            return update

        monkeypatch.setattr(Trainer, "train", train)


@pytest.mark.parametrize(
    "rule", [{"aggregation": "median"}, {"aggregation": "trimmed:0.2"}, {"norm_bound": 5.0}]
)
@pytest.mark.parametrize("variates", ["explicit", "derived"])
def test_a_traitor_among_five_does_not_ruin_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], variates: str
) -> None:
    Traitor(monkeypatch)
    config = RunConfig(**FIVE, **rule, variates=variates)
    simulate(config, tmp_path / "run", lambda line: None)
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert records[-1]["accuracy"] > 0.7
    if "norm_bound" in rule:
        assert [list(record["left_out"]) for record in records] == [["client-4"]] * 4
        assert records[0]["updates"] == 4
        assert records[0]["left_out"]["client-4"] > 5


def test_without_any_rule_he_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Traitor(monkeypatch)
    with pytest.raises(RunError, match="no client has an update to give"):
        simulate(RunConfig(**FIVE), tmp_path / "run", lambda line: None)
