"""Comparisons of methods with the same seeds: differences, intervals, bounds for targets not reached."""

from __future__ import annotations

import random
import statistics

import pytest

from fedlab.reports.paired import (
    Bound,
    Interval,
    Reached,
    band,
    differences,
    interval,
    mean_rounds,
    mean_speed_up,
    speed_up,
)


def test_an_interval_lies_around_the_mean_and_does_not_depend_on_the_order_of_seeds() -> None:
    draw = random.Random(3)
    values = [draw.gauss(5, 2) for _ in range(12)]
    found = interval(values)
    assert found.low is not None
    assert found.high is not None
    assert min(values) < found.low < found.mean < found.high
    assert found.mean == pytest.approx(statistics.mean(values))
    assert interval(sorted(values)) == interval(values[::-1]) == found
    shifted = interval([value + 10 for value in values])
    assert shifted.low == pytest.approx(found.low + 10)


def test_about_95_of_100_intervals_hold_the_true_mean() -> None:
    draw = random.Random(7)
    held = 0
    for _ in range(200):
        found = interval([draw.gauss(0, 1) for _ in range(30)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert 0.88 <= held / 200 <= 1.0


def test_a_single_value_has_no_interval_and_equal_ones_a_point() -> None:
    assert interval([2.0]) == Interval(2.0)
    assert interval([2.0]).text() == "2.0"
    assert interval([2.0, 2.0, 2.0]) == Interval(2.0, 2.0, 2.0)
    assert interval([2.0, 2.0]).text(".2f") == "2.00 [2.00, 2.00]"


def test_differences_are_of_the_seeds_that_both_have() -> None:
    """Seeds that are hard for everybody do not widen the interval of a difference."""
    baseline = {0: 10.0, 1: 50.0, 2: 90.0}
    assert differences({0: 11.0, 1: 51.0, 7: 0.0}, baseline) == [1.0, 1.0]


def test_a_target_that_was_not_reached_makes_bounds() -> None:
    slow, fast, never = Reached(10), Reached(4), Reached(20, censored=True)
    assert [each.text() for each in (slow, never)] == ["10", ">20"]
    assert speed_up(fast, slow) == Bound(2.5)
    assert speed_up(fast, never) == Bound(5.0, ">"), "the baseline would have needed more than 20"
    assert speed_up(never, slow) == Bound(0.5, "<")
    assert speed_up(never, never) is None
    assert mean_rounds([fast, slow]) == Bound(7.0)
    assert mean_rounds([fast, never]).text() == ">12.0"


def test_a_mean_speed_up_leaves_no_seed_out() -> None:
    method = {0: Reached(5), 1: Reached(10)}
    baseline = {0: Reached(10), 1: Reached(80)}
    both = mean_speed_up(method, baseline)
    turned = mean_speed_up(baseline, method)
    assert both is not None
    assert turned is not None
    assert both.value == pytest.approx(4.0)
    assert turned.value == pytest.approx(1 / 4)
    at_least = mean_speed_up(method, baseline | {1: Reached(80, censored=True)})
    assert at_least is not None
    assert at_least.text(".2f", "x") == ">4.00x"
    never = Reached(80, censored=True)
    assert mean_speed_up(method | {1: never}, baseline | {1: never}) is None, "nothing is known of seed 1"
    assert mean_speed_up(method | {0: never}, baseline | {1: never}) is None, "one bound above, one below"
    assert mean_speed_up({}, baseline) is None


def test_a_band_has_the_intervals_of_its_means_and_ends_with_the_shortest_curve() -> None:
    found = band([([1, 2, 3], [0.1, 0.2, 0.3]), ([1, 2], [0.3, 0.4])])
    assert found.xs == [1, 2]
    assert found.mean == pytest.approx([0.2, 0.3])
    assert (found.low, found.high) == ([0.1, 0.2], [0.3, 0.4]), "of two values it goes from one to the other"
    ten = band([([1], [0.1 * k]) for k in range(10)])
    assert 0.0 < ten.low[0] < 0.45 < ten.high[0] < 0.9
    assert band([]).xs == []
