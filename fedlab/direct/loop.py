"""An event loop for the server of a simulation, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from common.errors import UnavailableError

T = TypeVar("T")


class Loop:
    """Runs while the block does."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._asked: set[Future[Any]] = set()
        self._answers = True

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Who still waits, or asks only now, hears of the end before the loop stops, or would wait for ever.
        self.answer_nobody()
        self.call(self._cancel_all())
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    @contextmanager
    def inside(self, context: AbstractAsyncContextManager[object]) -> Iterator[None]:
        """Enters and leaves a context of the loop."""
        self.call(_entered(context))
        try:
            yield
        except BaseException as error:
            self.call(_left(context, error))
            raise
        self.call(_left(context, None))

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Lets a coroutine run."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for an answer to a client; raises if there will be none."""
        if not self._answers:
            work.close()
            raise UnavailableError("the run has ended")
        future = self.start(work)
        self._asked.add(future)
        if not self._answers:
            future.cancel()
        try:
            return future.result()
        except CancelledError:
            raise UnavailableError("the run has ended") from None
        finally:
            self._asked.discard(future)

    def answer_nobody(self) -> None:
        """The run is over and cannot tell its clients: who waits for an answer gets none."""
        self._answers = False
        for future in list(self._asked):
            future.cancel()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine."""
        return self.start(work).result()


async def _entered(context: AbstractAsyncContextManager[object]) -> None:
    await context.__aenter__()


async def _left(context: AbstractAsyncContextManager[object], error: BaseException | None) -> None:
    await context.__aexit__(type(error) if error is not None else None, error, None)
