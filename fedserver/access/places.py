"""Places for transfers: on a quick link more of them at once take more memory, and more time as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PLACES = 2
"""The server works on one while the next message of the other is on its way. Six take a seventh longer."""
LOOK_S = 0.1
LEAST_BYTES = 1 << 20
"""A transfer that gets on by less between two looks is on a slow link, and others do not wait for it."""


class Place:
    """That of one transfer, until it ends or turns out to be slow."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._moved = LEAST_BYTES
        """Bytes since the last look."""
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def moved(self, num_bytes: int) -> None:
        """So many bytes have come or gone."""
        self._moved += num_bytes

    def _look(self) -> None:
        if self._moved < LEAST_BYTES:
            self.give_up()
            return
        self._moved = 0
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def give_up(self) -> None:
        """Lets another transfer have it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.release()


class QuickPlaces:
    """Lets only so many transfers be under way that get on: gRPC holds copies of messages for each."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(PLACES)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Place]:
        """Waits until it is the turn of this transfer, which is the block."""
        await self._places.acquire()
        place = Place(self._places)
        try:
            yield place
        finally:
            place.give_up()
