"""How a program ends when it is told to: SIGTERM unwinds it as Ctrl-C does, wherever it is at that moment.

Both are exceptions, and Python drops any that is raised where nobody could catch it, such as in the callback
of a weak reference in the middle of an import. The program would go on and never end. So a signal that was
dropped is sent once more.
"""

from __future__ import annotations

import _thread
import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from common.errors import ExitCode

GOOD_BYE_S = 3.0
"""How long a process may take to end after the first SIGTERM before another counts."""
AGAIN_S = 0.02
"""By then Python has left where it dropped the exception."""


class Stopped(BaseException):
    """SIGTERM came."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Lets SIGTERM unwind the block as Ctrl-C does, and ends the process quietly after either."""
    handler, told = _Raise(), sys.unraisablehook
    signal.signal(signal.SIGTERM, handler)
    deaf_at_exit()
    sys.unraisablehook = _sending_again(handler, told)
    try:
        yield
    except Stopped:
        raise SystemExit(exit_code(signal.SIGTERM)) from None
    except KeyboardInterrupt:
        raise SystemExit(exit_code(signal.SIGINT)) from None
    finally:
        sys.unraisablehook = told


def deaf_at_exit() -> None:
    """Ignores a SIGTERM that comes while the process is ending anyway, so that it keeps its exit code."""
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)


def exit_code(signal_number: int) -> int:
    """0 for a normal end and for SIGTERM, which asks for one; 130 for Ctrl-C, as shells expect."""
    return ExitCode.INTERRUPTED if signal_number == signal.SIGINT else ExitCode.DONE


class _Raise:
    """Handler of SIGTERM. One more within seconds is of the same sender, and does not cut off a good-bye."""

    def __init__(self) -> None:
        self._last_s = -math.inf

    def __call__(self, number: int, _: object) -> None:
        now = time.monotonic()
        if now >= self._last_s + GOOD_BYE_S:
            self._last_s = now
            raise Stopped

    def forget(self) -> None:
        """The last one has ended nothing."""
        self._last_s = -math.inf


def _sending_again(handler: _Raise, told: Callable[[Any], object]) -> Callable[[Any], object]:
    """A hook for exceptions that were dropped; all others go to the hook that was there."""

    def hook(dropped: Any) -> None:
        if threading.current_thread() is not threading.main_thread():  # Signals are the main thread's.
            told(dropped)
        elif issubclass(dropped.exc_type, Stopped):
            handler.forget()
            _send_again(signal.SIGTERM)
        elif issubclass(dropped.exc_type, KeyboardInterrupt):
            _send_again(signal.SIGINT)
        else:
            told(dropped)

    return hook


def _send_again(number: int) -> None:
    """From a bare thread: there is no telling which locks are held where the exception was dropped."""

    def send() -> None:
        time.sleep(AGAIN_S)
        os.kill(os.getpid(), number)

    _thread.start_new_thread(send, ())
