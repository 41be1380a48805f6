"""The rule of --svr auto, and what a change of S_svr does to c and every c_i: properties, without a run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.server_step.adaptive import PATIENCE, THETA, Choice, modules, next_choice
from common.server_step.entry import Answered, Change, raw_diversity
from common.tensors.layout import Flat, Float64, Layout, Purpose, TensorSpec
from tests.rules import rules

SIZES = {
    "a.weight": 400,
    "a.bias": 40,
    "b.weight": 800,
    "b.bias": 80,
    "c.weight": 90,
    "c.bias": 10,
    "d.w": 600,
}
MODULES = modules(SIZES)
TOTAL = sum(SIZES.values())
SIGNALS = st.dictionaries(
    st.sampled_from([module.name for module in MODULES]), st.floats(0.01, 1e3, allow_nan=False)
)


def after(signals: list[dict[str, float]], budget: float = 1.0, choice: Choice | None = None) -> list[Choice]:
    """What is chosen after each of some rounds."""
    found, choice = [], choice or Choice()
    for r, xi in enumerate(signals, start=1):
        choice = next_choice(choice, MODULES, xi, budget, r)
        found.append(choice)
    return found


@given(st.lists(SIGNALS, max_size=12), st.floats(0.0, 1.0))
def test_the_budget_is_never_exceeded_and_modules_are_whole(
    signals: list[dict[str, float]], budget: float
) -> None:
    for choice in after(signals, budget):
        assert sum(SIZES[name] for name in choice.since) <= budget * TOTAL
        for module in MODULES:
            assert len(choice.since.keys() & set(module.parameters)) in (0, len(module.parameters))


@given(st.lists(SIGNALS, max_size=12), st.floats(0.0, 1.0))
def test_the_same_measurements_lead_to_the_same_set(signals: list[dict[str, float]], budget: float) -> None:
    assert after(signals, budget) == after([dict(reversed(xi.items())) for xi in signals], budget)


@given(SIGNALS, st.floats(0.0, 1.0), st.lists(SIGNALS, max_size=6))
def test_a_constant_signal_changes_the_set_once_at_the_most(
    xi: dict[str, float], budget: float, before: list[dict[str, float]]
) -> None:
    """Whatever was before: after PATIENCE rounds of the same, the set stays as it is."""
    start = after(before, budget)[-1] if before else Choice()
    found = [choice.since.keys() for choice in after([xi] * 12, budget, start)]
    assert found[PATIENCE:] == [found[PATIENCE]] * (len(found) - PATIENCE)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12), st.booleans())
def test_noise_within_the_band_changes_nothing(noise: list[float], inside: bool) -> None:
    """The median is 1 here, and a, inside or outside, stays between THETA / 2 and THETA times that."""
    assert THETA == 2.0
    start = Choice(since={"a.weight": 1, "a.bias": 1} if inside else {})
    signals = [{"a": max(1.0, one), "b": 1.0, "c": min(1.0, one), "d": 1.0} for one in noise]
    assert all(choice.since == start.since for choice in after(signals, 1.0, start))


def test_one_loud_round_is_not_enough() -> None:
    quiet, loud = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, {"a": 1.0, "b": 1.0, "c": 9.0, "d": 1.0}
    assert not any(choice.since for choice in after([loud, quiet, loud, quiet, loud]))
    assert after([quiet, loud, loud])[-1].since == {"c.weight": 3, "c.bias": 3}


def test_what_is_most_apart_per_byte_enters_first() -> None:
    """All of a, c and d ask for it; c is the smallest, and there is no room for a and d together."""
    loud = {"a": 90.0, "b": 1.0, "c": 50.0, "d": 100.0, "e": 1.0, "f": 1.0}
    wider = [*MODULES, *modules({"e.w": 300, "f.w": 300})]
    choice = Choice()
    for r in (1, 2):
        choice = next_choice(choice, wider, loud, 600 / sum(m.num_bytes for m in wider), r)
    assert set(choice.since) == {"a.weight", "a.bias", "c.weight", "c.bias"}


def test_what_waits_for_room_enters_when_there_is_some() -> None:
    loud = {"a": 9.0, "b": 1.0, "c": 50.0, "d": 1.0}
    calm = loud | {"c": 0.1}
    room = SIZES["a.weight"] + SIZES["a.bias"]
    found = after([loud, loud, calm | {"c": 0.4}, calm, calm], room / TOTAL)
    assert set(found[1].since) == {"c.weight", "c.bias"}
    assert set(found[3].since) == {"a.weight", "a.bias"}


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@given(steps=st.integers(1, 30), eta_l=st.floats(1e-3, 1.0))
def test_a_constant_gradient_is_found_again_with_any_momentum(
    momentum: float, steps: int, eta_l: float
) -> None:
    y, velocity, gradient = 0.0, 0.0, 3.0
    for _ in range(steps):
        velocity = momentum * velocity + gradient
        y -= eta_l * velocity
    found = rules(eta_l=eta_l, momentum=momentum).outside_step_sum("w", steps)
    assert -y / found == pytest.approx(gradient)


NAMES = ("u.w", "v.w")
BEFORE = Layout([*(TensorSpec(n, "float32", (3,)) for n in NAMES)]).reducing(["u.w"])
AFTER = BEFORE.reducing(["v.w"])
BOTH = BEFORE.reducing(NAMES)


def buffer(layout: Layout, *tensors: Float64) -> Flat:
    """Tensors one after the other."""
    flat = layout.allocate()
    for k, tensor in enumerate(tensors):
        layout.array(flat, k)[...] = tensor
    return flat


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_c_stays_the_mean_or_center_of_all_variates(aggregation: str) -> None:
    """Two of three clients have answered; the third has a variate of zero where a parameter enters."""
    random = np.random.default_rng(0)
    x, c = random.normal(size=(2, 3)), random.normal(size=3)
    answers = [
        Answered(buffer(BEFORE, *random.normal(size=(3, 3))), steps=steps, weight=1.0, client_weight=1.0)
        for steps in (4, 7)
    ]
    rule = rules(num_clients=3, momentum=0.9, aggregation=aggregation)
    change = Change(rule, BEFORE, BOTH, buffer(BEFORE, *x, c))
    found = change.flat(buffer(BEFORE, *x, c), lambda: iter(answers))
    variates = rule.method.variates(BOTH)
    all_c_i = [change.variate(answer) for answer in answers] + [variates.allocate()]
    entered = np.stack([variates.array(c_i, 1) for c_i in all_c_i]).astype(np.float64)
    center = entered.mean(axis=0) if aggregation == "mean" else np.median(entered, axis=0)
    np.testing.assert_array_equal(BOTH.array(found, 3), center.astype(np.float32))
    assert BOTH.raw(found, 2).tobytes() == BEFORE.raw(buffer(BEFORE, *x, c), 2).tobytes(), "u stays"
    for answer, c_i in zip(answers, all_c_i, strict=False):
        assert variates.raw(c_i, 0).tobytes() == BEFORE.raw(answer.values, 2).tobytes()


def test_what_leaves_is_forgotten() -> None:
    x = np.ones((2, 3))
    change = Change(rules(), BEFORE, AFTER, buffer(BEFORE, *x, np.ones(3)))
    answer = Answered(buffer(BEFORE, 0 * x[0], 0 * x[1], np.ones(3)), steps=5, weight=1.0, client_weight=1.0)
    assert [spec.name for spec in rules().method.variates(AFTER).specs] == ["v.w"]
    np.testing.assert_allclose(AFTER.array(change.flat(answer.values, lambda: iter([answer])), 2), 2.0)


def test_a_module_inside_is_judged_by_its_raw_gradients() -> None:
    """Clients whose corrected moves are alike, but whose gradients point everywhere, are far apart."""

    def answers() -> Iterator[Answered]:
        for sign in (1.0, -1.0, 1.0):
            values = buffer(BEFORE, np.ones(3), np.ones(3), sign * np.ones(3))
            yield Answered(values, steps=5, weight=1.0, client_weight=1.0)

    assert raw_diversity(rules(), BEFORE, answers) == {"u": pytest.approx(3.0)}
    assert BEFORE.indices(Purpose.CONTROL) == [2]
