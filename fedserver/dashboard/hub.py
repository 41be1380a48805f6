"""Looks at run directories while somebody watches, and tells every open page what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from common.live.view import RunView
from common.records import form
from fedserver.dashboard.messages import RunMessage
from fedserver.dashboard.run_feed import RunFeed

POLL_S = 0.25
"""Between two looks: a handful of questions to the file system."""
HURRY_S = 0.02
"""The same while a long file is being read."""
BACKLOG = 256
"""Messages for a page that does not keep up; then it has to begin anew."""
ALIVE_S = 15.0
"""A page without news hears at least this often that it is still connected."""


class Hub:
    """All runs, and the pages that show them."""

    def __init__(self, run_dirs: Sequence[Path]) -> None:
        self._feeds = [RunFeed(number, run_dir) for number, run_dir in enumerate(run_dirs)]
        self._pages: set[asyncio.Queue[str | None]] = set()
        self._looking = asyncio.Lock()
        self._watched = asyncio.Event()
        self._closed = False

    @property
    def views(self) -> list[RunView]:
        """The `RunView` of every run, as it was at the last look."""
        return [feed.view for feed in self._feeds]

    async def run(self) -> None:
        """Looks for as long as there are pages."""
        while True:
            await self._watched.wait()
            await self.look()
            hurry = any(feed.behind for feed in self._feeds)
            await asyncio.sleep(HURRY_S if hurry else POLL_S)

    async def look(self) -> None:
        """Reads what is new, and tells everybody."""
        async with self._looking:
            for message in await asyncio.to_thread(self._look):
                self._tell(message)

    def _look(self) -> list[str]:
        found = (feed.look() for feed in self._feeds)
        return [_encoded(message) for message in found if message is not None]

    async def whole(self) -> list[str]:
        """Everything, as JSON, a run each."""
        await self.look()
        async with self._looking:
            return await asyncio.to_thread(lambda: [_encoded(feed.whole()) for feed in self._feeds])

    async def shown(self, show: Callable[[list[RunView]], bytes]) -> bytes:
        """What somebody else makes of all views as they are now."""
        await self.look()
        async with self._looking:
            return await asyncio.to_thread(show, self.views)

    async def news(self) -> AsyncIterator[str]:
        """Everything and then what changes, as server-sent events, until the page is closed."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(BACKLOG)
        first = await self.whole()
        self._pages.add(queue)
        self._watched.set()
        try:
            yield f"event: runs\ndata: {len(self._feeds)}\n\n"
            for message in first:
                yield f"data: {message}\n\n"
            while not self._closed:
                message_or_end = ""
                with suppress(TimeoutError):
                    async with asyncio.timeout(ALIVE_S):
                        message_or_end = await queue.get() or ""
                        if not message_or_end:
                            return
                yield f"data: {message_or_end}\n\n" if message_or_end else ": still here\n\n"
        finally:
            self._pages.discard(queue)
            if not self._pages:
                self._watched.clear()

    def close(self) -> None:
        """Sends all pages away."""
        self._closed = True
        for queue in list(self._pages):
            self._end(queue)

    def _tell(self, message: str) -> None:
        for queue in list(self._pages):
            if queue.full():
                self._end(queue)
            else:
                queue.put_nowait(message)

    def _end(self, queue: asyncio.Queue[str | None]) -> None:
        """The browser connects again by itself, and gets everything."""
        self._pages.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


def _encoded(message: RunMessage) -> str:
    return form.text(message)
