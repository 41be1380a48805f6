"""Leases and the waiting rule as arithmetic: who is waited for, and until when."""

from __future__ import annotations

import math

import pytest
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


def signs_only(leases: Leases, clock: Clock, i: int, seconds: float) -> float:
    """For how much longer a client holds its lease that gives a sign every second, up to `seconds`."""
    for second in range(int(seconds)):
        if leases.left(i) <= 0:
            return second
        clock.now += 1
        leases.renew(i)
    return seconds


def test_signs_of_life_alone_do_not_hold_a_lease_for_ever() -> None:
    clock = Clock()
    leases = Leases(10, clock)
    leases.renew(0)
    leases.round_opens([0])
    assert signs_only(leases, clock, 0, 1000) == 10 * 10
    assert leases.stalls(0)
    leases.round_opens([0])
    assert signs_only(leases, clock, 0, 1000) == 10, "it has one lease in the next round, not ten"
    leases.round_opens([])
    assert signs_only(leases, clock, 0, 1000) == 1000, "where no round waits for it, there is nothing to do"
    leases.answered(0)
    leases.round_opens([0])
    assert signs_only(leases, clock, 0, 1000) == 10 * 10, "an answer makes up for it"


def test_a_client_has_ten_times_as_long_as_any_other_has_taken_but_not_as_itself_has() -> None:
    clock = Clock()
    leases = Leases(1, clock)
    leases.round_opens([0, 1])
    clock.now += 300
    leases.answered(0)
    leases.renew(1)
    assert signs_only(leases, clock, 1, 10_000) >= 3000 - 300
    leases.answered(1)
    leases.round_opens([0, 1])
    leases.renew(1)
    slow = signs_only(leases, clock, 1, 10**5)
    assert slow == 3000, "client 1 was ten times slower, and gets no hundred times longer for it"


def test_a_client_that_was_away_has_its_time_when_it_is_back() -> None:
    clock = Clock()
    leases = Leases(10, clock)
    leases.renew(0)
    leases.round_opens([0])
    clock.now += 5000
    assert leases.left(0) <= 0
    assert not leases.stalls(0)
    leases.renew(0)
    assert signs_only(leases, clock, 0, 1000) == 10 * 10 - 10


@pytest.mark.parametrize(("bytes_per_second", "arrives"), [(8000, True), (2, False), (0, False)])
def test_an_upload_holds_a_lease_while_a_useful_amount_comes(bytes_per_second: int, arrives: bool) -> None:
    """40 MB at 64 kbit/s take an hour and a half, in chunks of a megabyte; drops are given up before."""
    clock, size, chunk = Clock(), 40_000_000, 1 << 20 if bytes_per_second > 1000 else 1
    leases = Leases(10, clock)
    leases.renew(0)
    leases.round_opens([0])
    with leases.held(0):
        leases.upload_begins(0)
        sent = 0
        while sent < size and leases.left(0) > 0:
            clock.now += 1
            sent += bytes_per_second
            leases.arrived(0, sent // chunk * chunk)
        assert (sent >= size) is arrives
        if not arrives:
            assert leases.stalls(0)
            assert clock.now < 100 + 10 * 10 + 300, "ten leases, and the time of a chunk"
            leases.arrived(0, 0)
            assert leases.left(0) <= 0, "sending the same again earns nothing"


def test_waiting_in_the_queue_of_uploads_costs_nothing() -> None:
    clock = Clock()
    leases = Leases(10, clock)
    leases.renew(0)
    leases.round_opens([0])
    with leases.held(0):
        clock.now += 10_000
        leases.upload_begins(0)
        assert leases.left(0) > 0


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
    assert not verdict.stranded
    assert not verdict.lost


@given(st.integers(0, 9), st.integers(0, 9), LEFT, st.integers(0, 9), st.integers(0, 4))
def test_whoever_leaves_is_left_out_only_if_enough_others_have_an_update(
    updates: int, declined: int, waiting: dict[int, float], leaving: int, least: int
) -> None:
    drawn, leavers = updates + declined + len(waiting), list(waiting)[:leaving]
    staying = drawn - len(leavers)
    rule = WaitingRule(None, 0.5, least)
    verdict = rule.judge(0, drawn, updates, waiting, leavers, staying)
    if set(leavers) & set(verdict.excused):
        assert updates >= drawn / 2
        assert staying >= least
    assert verdict.stranded == (drawn - declined - len(leavers) < drawn / 2 or staying < least)
    assert verdict.lost == (drawn - declined < drawn / 2)


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
