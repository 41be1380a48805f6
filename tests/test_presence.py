"""Who is there, who is missing, and who is told of it: with a clock that is set by hand."""

from __future__ import annotations

import asyncio
import math

import pytest

from common.errors import Fault, WireError
from common.events import Event
from fedserver.events.clients import ClientBack, ClientJoined, ClientLeft, LinesLeftOut, TurnedAway
from fedserver.events.sparing import BURST, sparing
from fedserver.members.presence import HUNG_UP_S, Presence
from fedserver.members.watch import Watch
from tests.test_leases import Clock


class Watched:
    """A watch over client 0, which works on round 7."""

    def __init__(self, *, gives_signs: bool = True) -> None:
        self.clock, self.said, self.came = Clock(), list[Event](), 0
        self.presence = Presence(None, 1, self.said.append, self.clock)
        self.presence.heard(0, "b")
        self.presence.gives_signs(0, gives_signs)
        self.presence.round_sent(0, 7)
        self.watch = Watch(self.presence, lambda i: self.came)

    def told_within(self, seconds: float) -> list[tuple[int, str]]:
        """When and how it is said in the next seconds that the client is missing, looking when told to."""
        found, end, start = [], self.clock.now + seconds, self.clock.now
        while self.clock.now <= end:
            due, again_s = self.watch.look([0])
            found += [(round(self.clock.now - start), self.presence.silence(i)) for i in due]
            self.clock.now += min(again_s, end - self.clock.now + 1)
        return found


def test_a_client_that_works_and_gives_no_sign_is_named_within_15_s_and_then_sparingly() -> None:
    watched = Watched()
    told = watched.told_within(700)
    assert [at for at, _ in told] == [12, 30, 60, 120, 300, 600]
    assert told[0][1] == "has not been heard of for 12 s"
    assert watched.presence.is_missing(0)
    watched.presence.heard(0, "b")
    assert watched.said == [ClientBack(client="b")]
    assert not watched.presence.is_missing(0)


def test_a_client_that_comes_back_and_vanishes_again_is_named_again_as_soon() -> None:
    watched = Watched()
    assert [at for at, _ in watched.told_within(299)] == [12, 30, 60, 120]
    watched.presence.heard(0, "b")
    assert [at for at, _ in watched.told_within(20)] == [12]


def test_signs_of_life_are_enough_and_cause_no_event() -> None:
    watched = Watched()
    for _ in range(100):
        assert watched.told_within(5) == []
        watched.presence.heard(0, "b")
    assert watched.said == []


def test_bytes_on_a_slow_link_are_signs_too() -> None:
    watched = Watched()
    for _ in range(20):
        watched.came += 1
        assert watched.told_within(4) == []
    assert watched.told_within(30), "or it would never be named"


def test_a_client_of_an_earlier_release_is_named_once() -> None:
    """It gives no signs while it trains, so it may just be busy."""
    told = Watched(gives_signs=False).told_within(1000)
    assert told == [(60, "has not been heard of since it got round 7, 60 s ago")]


def test_a_broken_stream_is_news_at_once_unless_the_client_has_begun_another() -> None:
    watched = Watched()
    presence = watched.presence
    with pytest.raises(asyncio.CancelledError), presence.call(0):
        raise asyncio.CancelledError
    assert not presence.is_missing(0), "it may come back at once"
    told = watched.told_within(20)
    assert told[0] == (HUNG_UP_S, "hung up 3 s ago and has not come back")
    presence.heard(0, "b")
    broken = presence.call(0)
    broken.__enter__()
    with presence.call(0):
        assert not broken.__exit__(GeneratorExit, GeneratorExit(), None)
    watched.clock.now += HUNG_UP_S + 1
    assert not presence.is_missing(0)


def test_a_stream_that_was_cut_is_one_too_though_it_looks_as_if_it_had_ended() -> None:
    for fault, hung_up in ((Fault.TOO_FEW_BYTES, True), (Fault.NOT_FINITE, False)):
        watched = Watched()
        with pytest.raises(WireError), watched.presence.uploading(0):
            raise WireError(fault, "")
        assert watched.presence.silence(0).startswith("hung up") == hung_up


def test_a_client_that_waits_for_a_round_is_there_without_a_word() -> None:
    watched = Watched()
    with watched.presence.waiting(0):
        watched.clock.now += 1e6
        assert watched.presence.silent_s(0) == 0
        assert not watched.presence.is_missing(0)
    assert watched.told_within(11) == [], "it has as long as others from then on"


def test_a_good_bye_is_said_again_now_and_then_until_the_client_is_back() -> None:
    watched = Watched()
    watched.presence.says_good_bye(0)
    assert watched.presence.is_stopped(0)
    told = watched.told_within(70)
    assert told == [(30, "stopped 30 s ago"), (60, "stopped 60 s ago")]
    watched.presence.heard(0, "b")
    assert watched.said == [ClientBack(client="b")]
    assert not watched.presence.is_stopped(0)


def test_thousands_of_clients_give_signs_less_often() -> None:
    assert Presence(None, 500).sign_s == 5
    assert Presence(None, 10_000).sign_s == 100


def test_where_clients_take_turns_nobody_is_missing() -> None:
    clock = Clock()
    presence = Presence(None, 2, now=clock, expects_signs=False)
    presence.heard(0, "a")
    clock.now += 1e9
    assert not presence.is_missing(0)
    assert Watch(presence, lambda i: 0).look([0]) == ([], math.inf)


def test_a_client_that_comes_and_goes_all_the_time_does_not_fill_the_log() -> None:
    said: list[Event] = []
    emit = sparing(said.append)
    for _ in range(1500):
        emit(ClientJoined(client="a", taken=1, seats=2))
        emit(ClientLeft(client="a", reason="tired"))
    assert len(said) == BURST
    emit(ClientLeft(client="b", reason="tired"))
    emit(TurnedAway(client="a", reason="no", unsaid=0))
    assert len(said) == BURST + 2, "others, and other events, have their lines"
    assert LinesLeftOut(client="a", lines=3).text() == "a came and went 3 more times than these lines say"
