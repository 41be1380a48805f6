"""Places for transfers: on a quick link more of them at once take more memory and no less time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PLACES = 6
STUCK_S = 0.5
"""After this time without a frame a transfer is on a slow link, and others do not wait for it."""


class Place:
    """That of one transfer, until it ends or gets stuck."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self.moved = True
        """Set with every frame."""
        self._places = places
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def _look(self) -> None:
        if not self.moved:
            self.give_up()
            return
        self.moved = False
        self._timer = asyncio.get_running_loop().call_later(STUCK_S, self._look)

    def give_up(self) -> None:
        """Lets another transfer have it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.release()


class QuickPlaces:
    """Lets only so many transfers be under way that get on: gRPC holds copies of frames for each of them."""

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
