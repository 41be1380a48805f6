"""The open round: who has answered, what a second answer is worth, and who waits on the board."""

from __future__ import annotations

import asyncio
import weakref

import numpy as np
import pytest

from common.errors import UnavailableError, WireError
from common.server_step.step import CSource
from common.server_step.updates import UpdateReader
from common.tensors.layout import Layout, TensorSpec
from common.wire.bundles import bundles
from fedserver.run.board import Board, Phase
from fedserver.run.round import Answer, Declined, Excused, Outcome, Round, State, Update
from tests.rules import rules

UPDATE = Update("a", 3, steps=2, examples=5, loss=0.5)
DECLINED = Declined("a", 3, "no")
EXCUSED = Excused("a", "no sign of life")


def round_three(drawn: tuple[int, ...] = (0, 2)) -> Round:
    """A round for clients 0 and 2."""
    reader = UpdateReader(rules(round=3, rounds=3), Layout([]), np.zeros(0, np.uint8))
    return Round(reader, [], drawn, CSource.FROM_VARIATES)


def test_a_round_that_is_over_keeps_neither_x_nor_its_frames_for_those_who_are_slow() -> None:
    layout = Layout([TensorSpec("w", "float32", (4,))])
    x = layout.allocate()
    messages = list(bundles(layout, x))
    current = Round(UpdateReader(rules(round=3), layout, x), messages, [0], CSource.FROM_VARIATES)
    (position,) = current.positions
    assert current.bundle(position) is messages[0]
    kept = weakref.ref(x)
    current.release()
    del x
    assert kept() is None
    with pytest.raises(UnavailableError, match="round 3 is over; ask for the next one"):
        current.bundle(position)
    with pytest.raises(UnavailableError, match="round 3 is over"):
        current.reader  # noqa: B018
    assert current.rules.round == 3


@pytest.mark.parametrize(
    ("first", "state", "second"),
    [
        (UPDATE, State.UPDATED, Outcome.DUPLICATE),
        (DECLINED, State.DECLINED, Outcome.DUPLICATE),
        (EXCUSED, State.EXCUSED, Outcome.LATE),
    ],
)
def test_only_the_first_answer_of_a_client_counts(first: Answer, state: State, second: Outcome) -> None:
    current = round_three()
    assert current.state(0) is State.AWAITED
    assert current.answer(0, first) is Outcome.ACCEPTED
    assert current.state(0) is state
    for again in (UPDATE, DECLINED, EXCUSED):
        assert current.answer(0, again) is second
        assert current.answers[0] is first
    assert current.awaited() == [2]


def test_a_client_that_was_not_drawn_is_late() -> None:
    current = round_three()
    assert current.state(1) is State.NOT_DRAWN
    assert current.answer(1, UPDATE) is Outcome.LATE
    assert not current.updates()


def test_the_board_hands_a_round_to_those_it_waits_for_and_the_end_to_all() -> None:
    async def run() -> None:
        board = Board()
        with pytest.raises(UnavailableError, match="no round is open yet"):
            board.verdict(0, 3)
        first, second = (asyncio.create_task(board.next_round(i)) for i in (0, 1))
        current = round_three()
        coming = await board.open_round(current)
        assert await first is current
        assert board.answer(0, UPDATE) is Outcome.ACCEPTED
        assert await coming[0] is UPDATE
        with pytest.raises(WireError, match="round 3 is open, got an update for round 4"):
            board.verdict(2, 4)
        assert board.verdict(2, 2) is Outcome.LATE
        assert board.verdict(0, 3) is Outcome.DUPLICATE
        again = asyncio.create_task(board.next_round(0))
        await asyncio.sleep(0)
        assert not again.done(), "it has answered, so it waits for the next round"
        await board.end("over")
        assert board.phase is Phase.FINISHED
        assert [await second, await again] == [None, None]
        assert board.verdict(2, 3) is Outcome.LATE

    asyncio.run(run())


def test_a_stopping_board_sends_everybody_away() -> None:
    async def run() -> None:
        board = Board()
        waiting = asyncio.create_task(board.next_round(0))
        await asyncio.sleep(0)
        await board.stop()
        with pytest.raises(UnavailableError, match="stopping"):
            await waiting

    asyncio.run(run())


def test_the_farewell_ends_when_the_last_one_has_heard_or_left() -> None:
    async def run() -> None:
        board, here = Board(), {"a", "b"}
        farewell = asyncio.create_task(board.all_told(lambda: here))
        await asyncio.sleep(0)
        board.tell("a")
        await asyncio.sleep(0)
        assert not farewell.done()
        here.discard("b")
        board.tell("b")
        await farewell

    asyncio.run(run())
