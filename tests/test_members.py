"""Seats: names decide, nobody is lost, nobody can break the table."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from common.errors import JoinError
from common.names import natural, require_name
from fedserver.members.members import Members
from fedserver.members.seats import Member, OwnData

SHARDS = [[0, 1], [2], [3, 4, 5]]
NAMES = tuple("abcdefghij")


async def _settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def join(members: Members, name: str, own_data: OwnData | None = None) -> asyncio.Task[Member]:
    """Asks for a seat."""
    return asyncio.create_task(members.join(name, own_data))


def test_indices_follow_names_whatever_the_order_of_arrival() -> None:
    async def run(order: list[str]) -> dict[str, int]:
        members = Members(3)
        tasks = [join(members, name) for name in order]
        await _settle()
        members.open(SHARDS, NAMES)
        return {member.name: member.index for member in await asyncio.gather(*tasks)}

    expected = {"client-2": 0, "client-10": 1, "clinic": 2}
    assert asyncio.run(run(["clinic", "client-10", "client-2"])) == expected
    assert asyncio.run(run(["client-2", "clinic", "client-10"])) == expected
    assert sorted(["client-01", "client-1"], key=natural) == sorted(["client-1", "client-01"], key=natural)


def test_more_clients_than_seats_while_preparing_turns_the_last_away() -> None:
    async def run() -> None:
        members = Members(2)
        tasks = [join(members, name) for name in ("c", "a", "b")]
        await _settle()
        members.open(SHARDS, NAMES)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [getattr(result, "index", None) for result in results] == [1, 0, None]
        assert isinstance(results[2], JoinError)

    asyncio.run(run())


def test_a_caller_that_hangs_up_at_the_last_moment_leaves_no_ghost() -> None:
    async def run() -> None:
        members = Members(2)
        members.open(SHARDS, NAMES)
        first = join(members, "a")
        await _settle()
        first.cancel()
        second = join(members, "b")
        with suppress(asyncio.CancelledError):
            await first
        await _settle()
        assert not members.complete.is_set()
        third = join(members, "a")
        assert [(await task).index for task in (third, second)] == [0, 1]

    asyncio.run(run())


def test_labels_that_the_run_does_not_have_are_refused_before_a_seat_is_given() -> None:
    async def run() -> None:
        members = Members(1)
        wrong = join(members, "a", OwnData(5, ("a", "z")))
        await _settle()
        members.open(SHARDS, NAMES)
        with pytest.raises(JoinError, match="client 'a' has class 'z', the run has a, b"):
            await wrong
        assert (await join(members, "a", OwnData(5, ("j", "0")))).examples == 5

    asyncio.run(run())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 65, "a\n", "ü"])
def test_names_must_fit_a_line_and_a_file(name: str) -> None:
    with pytest.raises(JoinError, match="a client name has"):
        require_name(name)
