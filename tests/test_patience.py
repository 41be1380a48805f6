"""Leases and patience as arithmetic: who is waited for, and until when."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fedserver.members.leases import Leases
from fedserver.run.deadlines import WaitingRule

LEFT = st.dictionaries(st.integers(0, 9), st.floats(-5, 60), max_size=10)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def test_a_lease_runs_out_unless_it_is_renewed() -> None:
    clock = Clock()
    leases = Leases(10, clock)
    assert leases.left(0) <= 0, "a question starts no lease"
    leases.renew(0)
    assert leases.left(0) == 10
    clock.now += 6
    leases.renew(0)
    clock.now += 6
    assert leases.left(0) == 4
    clock.now += 4
    assert leases.left(0) <= 0
    leases.renew(0)
    assert leases.left(0) == 10


def test_a_lease_does_not_run_while_it_is_held() -> None:
    clock = Clock()
    leases = Leases(10, clock)
    with leases.held(0), leases.held(0):
        clock.now += 1000
        assert leases.left(0) > 0
    assert leases.left(0) == 10, "it starts again at the end"


def test_without_a_lease_nobody_is_ever_gone() -> None:
    clock = Clock()
    leases = Leases(None, clock)
    leases.renew(0)
    clock.now += 1e9
    assert leases.left(0) == math.inf


@given(st.none() | st.floats(1, 100), st.floats(0, 200), st.integers(0, 9), LEFT)
def test_nobody_is_excused_without_a_quorum_and_nobody_who_is_expected(
    deadline: float | None, elapsed: float, updates: int, waiting: dict[int, float]
) -> None:
    waiting_rule = WaitingRule(deadline, 0.5)
    drawn = updates + len(waiting)
    verdict = waiting_rule.judge(elapsed, drawn, updates, waiting)
    over = deadline is not None and elapsed >= deadline
    for i in verdict.excused:
        assert updates >= drawn / 2
        assert over or waiting[i] <= 0
    if updates >= drawn / 2:
        assert set(verdict.excused) == {i for i in waiting if over or waiting[i] <= 0}
    if verdict.short:
        assert updates < drawn / 2
        assert over or all(left <= 0 for left in waiting.values())


@given(st.none() | st.floats(1, 100), st.floats(0, 200), LEFT)
def test_it_looks_again_no_later_than_something_can_change(
    deadline: float | None, elapsed: float, waiting: dict[int, float]
) -> None:
    verdict = WaitingRule(deadline, 1.0).judge(elapsed, len(waiting), 0, waiting)
    assert verdict.again_s > 0
    if deadline is not None and elapsed < deadline:
        assert verdict.again_s <= deadline - elapsed
    if deadline is None:
        assert verdict.again_s == min((left for left in waiting.values() if left > 0), default=math.inf)
