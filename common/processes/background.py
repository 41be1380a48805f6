"""Work in a thread that its caller can wait for and end early."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from common.errors import CancelledError

T = TypeVar("T")


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
        if not self.done and not self._cancelled and self._thread.ident is not None:
            self._cancelled = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(Cancelled)
            )

    def close(self) -> None:
        """Ends the work, if it has not, and waits for that."""
        self.cancel()
        self._ended.wait()
