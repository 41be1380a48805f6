"""Work in a thread that its caller can wait for and end early."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from common.errors import CancelledError

T = TypeVar("T")
STARTING_S = 0.001
"""A thread that is being started has begun after about as long."""


class Cancelled(BaseException):
    """Raised inside the work when somebody ends it; like a signal it unwinds everything."""


class Background(Generic[T]):
    """One piece of work. It starts at once, and ends with the process if nobody waits for it."""

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self._name = name
        self._work = work
        self._result: list[T] = []
        self._failure: BaseException | None = None
        self._cancelled = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._attempt()
        except Cancelled:  # It came when the work was over.
            pass
        finally:
            self._ended.set()

    def _attempt(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as failure:
            self._failure = failure

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> T:
        """Its result; raises what ended it instead. Ctrl-C while waiting ends the work too."""
        try:
            ended = self._ended.wait(timeout_s)
        except KeyboardInterrupt:
            self.close()
            raise
        if not ended:
            raise TimeoutError(f"{self._name} has not ended after {timeout_s} s")
        if isinstance(self._failure, Cancelled):
            raise CancelledError(f"{self._name} was cancelled")
        if self._failure is not None:
            raise self._failure
        return self._result[0]

    def cancel(self) -> None:
        """Asks the work to end, which the work may do too; `wait` says when it has."""
        if not self._cancelled:
            self._cancelled = True
            while not self.done and not _raised(self._thread):
                time.sleep(STARTING_S)

    def close(self) -> None:
        """Ends the work, if it has not, and waits for that."""
        self.cancel()
        self._ended.wait()


def _raised(thread: threading.Thread) -> bool:
    """Has a thread raise `Cancelled`, unless some thread is being started.

    One that has not begun goes by the number of the thread that starts it. It would die of what was meant for
    the other, which waits for its first sign of life for ever. Nothing can start between the look at those
    and the call, as Python changes threads only after a call, or where it jumps back.
    """
    starting = getattr(threading, "_limbo", {})
    number, what = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Cancelled)
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    if starting:
        return False
    raise_in(number, what)
    return True
