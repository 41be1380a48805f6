"""A round that clients leave: it closes with enough of them, and else waits for a while and gives up."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable

import pytest

from common.errors import DivergedError, FedError, RunError
from common.events import Event
from fedserver.events.rounds import ClientExcused, QuorumLost, RoundHeldUp
from fedserver.members.members import Members
from fedserver.members.watch import Watch
from fedserver.run import supervision
from fedserver.run.board import Board
from fedserver.run.deadlines import WaitingRule
from fedserver.run.round import Declined, Excused, Update
from fedserver.run.supervision import require_enough, supervise
from tests.test_members import NAMES, SHARDS
from tests.test_round import round_three


class Supervised:
    """Clients a, b and c in the open round 3."""

    def __init__(self) -> None:
        self.members, self.board, self.said = Members(3), Board(), list[Event]()
        self.round = round_three((0, 1, 2))

    def update(self, i: int) -> None:
        """Client i hands in an update."""
        self.board.answer(i, Update("abc"[i], 3, steps=1, examples=1, loss=0.0))

    def decline(self, i: int, *, diverged: bool = False) -> None:
        """Client i has none."""
        self.board.answer(i, Declined("abc"[i], 3, "the loss is nan", diverged))

    def leave(self, i: int) -> None:
        """Client i goes for good."""
        self.members.leave(self.members.by_index[i], "no disk")
        self.board.look_again()

    async def join(self, i: int) -> None:
        """And comes back."""
        await self.members.join("abc"[i], None)
        self.board.look_again()

    async def said_any(self, kind: type[Event]) -> None:
        """Waits for an event."""
        while not any(isinstance(event, kind) for event in self.said):
            await asyncio.sleep(0)


def supervised(act: Callable[[Supervised], Awaitable[None]], least: int = 0) -> Supervised:
    """What becomes of the round; raises if it has too few updates."""

    async def run() -> Supervised:
        it, rule = Supervised(), WaitingRule(None, 0.5, least)
        joining = [asyncio.create_task(it.members.join(name, None)) for name in "abc"]
        it.members.open(SHARDS, NAMES)
        await asyncio.gather(*joining)
        coming = await it.board.open_round(it.round)
        watch = Watch(it.members.presence, lambda i: None)
        looking = asyncio.create_task(supervise(it.round, it.board, rule, it.members, watch, it.said.append))
        await act(it)
        answers = await asyncio.gather(*coming.values())
        looking.cancel()
        reasons = {answer.reason for answer in answers if not isinstance(answer, Update)}
        require_enough(it.round, rule, reasons)
        return it

    return asyncio.run(run())


def test_a_round_closes_without_a_client_that_left_once_enough_others_are_in() -> None:
    async def act(it: Supervised) -> None:
        it.leave(1)
        it.update(0)
        await asyncio.sleep(3 * supervision.PAUSE_S)
        assert it.round.waits_for(1), "one of three is no half"
        it.update(2)

    it = supervised(act)
    assert it.round.answers[1] == Excused("b", "left: no disk")
    assert not [event for event in it.said if isinstance(event, ClientExcused)], "its leaving was said"


def test_too_few_that_are_left_end_the_round_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RETURN_S", 0.2)

    async def act(it: Supervised) -> None:
        it.leave(1)
        it.leave(2)
        it.update(0)

    with pytest.raises(
        RunError, match=r"round 3: 1 of 3 clients have an update to give; --quorum 0.5 needs 2: left: no"
    ):
        supervised(act)


def test_a_client_that_comes_back_in_time_takes_part_in_the_round() -> None:
    async def act(it: Supervised) -> None:
        it.leave(1)
        it.leave(2)
        it.update(0)
        await it.said_any(QuorumLost)
        await it.join(1)
        it.update(1)

    it = supervised(act)
    assert sorted(it.round.updates()) == [0, 1]
    (lost,) = [event for event in it.said if isinstance(event, QuorumLost)]
    assert lost.text() == ("round 3: 2 clients are needed and too many have left; waiting 30 s for b, c")


def test_a_client_that_takes_much_longer_than_the_others_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "LONG_S", 0.2)

    async def act(it: Supervised) -> None:
        it.update(0)
        it.update(1)
        await it.said_any(RoundHeldUp)
        it.update(2)

    it = supervised(act)
    (held_up,) = [event for event in it.said if isinstance(event, RoundHeldUp)]
    assert re.fullmatch(r"round 3 has waited \d s and waits for c \(preparing\); 2 of 3 in", held_up.text())


def test_declining_is_no_update_and_a_round_that_too_many_decline_ends_at_once() -> None:
    async def act(it: Supervised) -> None:
        it.decline(0)
        it.decline(1)

    with pytest.raises(RunError, match="round 3: no client has an update to give: the loss is nan"):
        supervised(act)


@pytest.mark.parametrize(
    ("diverged", "kind"), [((0, 1, 2), DivergedError), ((0, 1), DivergedError), ((0,), RunError)]
)
def test_a_round_that_too_many_diverge_in_ends_otherwise_than_one_that_fails(
    diverged: tuple[int, ...], kind: type[FedError]
) -> None:
    async def act(it: Supervised) -> None:
        for i in range(3):
            it.decline(i, diverged=i in diverged)

    with pytest.raises(kind, match="round 3: no client has an update to give"):
        supervised(act)


def test_fewer_clients_than_the_run_starts_with_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RETURN_S", 0.2)

    async def act(it: Supervised) -> None:
        it.update(0)
        it.update(1)
        it.leave(2)

    with pytest.raises(RunError, match="--min-clients 3 clients that have not left: left: no disk"):
        supervised(act, least=3)
    assert supervised(act, least=2).round.answers[2] == Excused("c", "left: no disk")


def test_a_supervision_that_cannot_go_on_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would, if somebody is missing in it."""

    def fails(*_: object) -> float:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(supervision._Supervision, "judge", fails)

    async def act(it: Supervised) -> None:
        it.update(0)

    with pytest.raises(OSError, match="no space left"):
        supervised(act)
