"""Transfers side by side: only so many that get on, and nobody waits for a slow one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from fedserver.access import places
from fedserver.access.places import QuickPlaces


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not reached():
            await asyncio.sleep(0)


def test_only_so_many_transfers_are_under_way() -> None:
    async def run() -> None:
        quick, under_way, most = QuickPlaces(), 0, 0

        async def transfer() -> None:
            nonlocal under_way, most
            async with quick.one() as place:
                under_way += 1
                most = max(most, under_way)
                for _ in range(3):
                    place.moved(1)
                    await asyncio.sleep(0)
                under_way -= 1

        await asyncio.gather(*(transfer() for _ in range(5 * places.PLACES)))
        assert most == places.PLACES

    asyncio.run(run())


def test_nobody_waits_for_a_transfer_on_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LOOK_S", 0.001)

    async def run() -> None:
        quick, begun, over = QuickPlaces(), 0, False

        async def slow() -> None:
            nonlocal begun
            async with quick.one() as place:
                begun += 1
                while not over:
                    place.moved(1)
                    await asyncio.sleep(0)

        tasks = [asyncio.create_task(slow()) for _ in range(3 * places.PLACES)]
        await _until(lambda: begun == len(tasks))
        over = True
        await asyncio.gather(*tasks)
        async with AsyncExitStack() as stack:  # The places are all there again.
            for _ in range(places.PLACES):
                await stack.enter_async_context(quick.one())

    asyncio.run(run())
