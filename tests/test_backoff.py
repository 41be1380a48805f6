"""How long a client waits for a silent server."""

from __future__ import annotations

import itertools

from fedclient.run.backoff import FIRST_WAIT_S, LONGEST_WAIT_S, Backoff


def test_silence_is_counted_from_the_first_failure() -> None:
    backoff = Backoff(now=itertools.count(100.0, 10.0).__next__)
    assert [backoff.failed("x") for _ in range(4)] == [None, 10.0, 20.0, 30.0]
    backoff.heard()
    assert [backoff.failed("x") for _ in range(2)] == [None, 10.0]


def test_a_transfer_that_gets_on_is_no_silence() -> None:
    backoff = Backoff(now=itertools.count(100.0, 10.0).__next__)
    assert [backoff.failed(reached) for reached in (None, 1, 2, 2, 3)] == [None, None, None, 10.0, None]


def test_waits_grow_up_to_a_limit_and_start_again() -> None:
    backoff = Backoff()
    waits = [backoff.next_wait() for _ in range(30)]
    assert FIRST_WAIT_S * 0.8 <= waits[0] <= FIRST_WAIT_S * 1.2
    assert waits[9] > waits[0]
    assert all(LONGEST_WAIT_S * 0.8 <= wait <= LONGEST_WAIT_S * 1.2 for wait in waits[20:])
    backoff.heard()
    assert backoff.next_wait() <= FIRST_WAIT_S * 1.2
