"""Gives up a connection that looks open but carries nothing any more.

Bytes that come twice or damaged over a plain connection can leave either side waiting for the rest of a frame
that never ends; a half-open connection and a server that hangs look alike. gRPC's own pings take minutes to
tell, because on a slow link they wait behind a megabyte of data. So, while a call is open, the kernel's count
of bytes is looked at: a slow link passes some. If next to nothing passes, the server is asked for its health
over the same connection; if that is not answered either, the connection is given up. Transfers go on
where they stopped, over the next one.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.access import tcp_counts

MOVING_S = 10.0
"""How long next to nothing may pass in a transfer before the server is asked whether it is there."""
WAITING_S = 40.0
"""The same while the server has nothing to say, or has just answered."""
ANSWER_S = 15.0
"""How long the answer may take."""
LOOK_S = 2.5
LEAST_BYTES = 1024
"""Less than this is next to nothing: pings are."""


class Liveness:
    """Watches a connection, in a thread of its own, as long as calls are open on it."""

    def __init__(
        self,
        passed: Callable[[], int | None],
        answers: Callable[[float], bool],
        hang_up: Callable[[float], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`passed`: bytes so far, None if nobody can tell; `answers`: does the server, in so many seconds?"""
        self._passed = passed
        self._answers = answers
        self._hang_up = hang_up
        self._now = now
        self._bytes = 0
        self._quiet_since = 0.0
        self._patience_s = MOVING_S
        self._keys = itertools.count()
        self._open: dict[int, bool] = {}
        """Calls, and whether the server may still take its time before it says the first word."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def call(self, *, may_wait: bool) -> Iterator[Callable[[], None]]:
        """A call is open in the block; what it gets is to be called with every frame."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="liveness", daemon=True)
            self._thread.start()
        key = next(self._keys)

        def heard() -> None:
            self._open[key] = False
            self._moved()

        self._open[key] = may_wait
        self._moved()
        try:
            yield heard
        finally:
            del self._open[key]

    def close(self) -> None:
        """Watches no longer."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S) and self.look():
            pass

    def look(self) -> bool:
        """Looks once; returns whether the connection is still good."""
        calls = list(self._open.values())
        if not calls or self._passes() or self._quiet_s() < (WAITING_S if all(calls) else self._patience_s):
            return True
        if self._answers(ANSWER_S):
            self._moved()
            self._patience_s = WAITING_S
        elif not self._passes() and self._open and not self._closed.is_set():
            self._hang_up(self._quiet_s())
            return False
        return True

    def _passes(self) -> bool:
        """Whether enough has passed since it last did, or nobody can tell."""
        passed = self._passed()
        if passed is not None and 0 <= passed - self._bytes < LEAST_BYTES:
            return False
        self._bytes = passed or 0
        self._moved()
        return True

    def _moved(self) -> None:
        self._quiet_since, self._patience_s = self._now(), MOVING_S

    def _quiet_s(self) -> float:
        return self._now() - self._quiet_since


def bytes_to(server: str) -> int | None:
    """Bytes that have passed, either way, on connections to a server's port; None if nobody can tell."""
    port = server.rpartition(":")[2]
    if not tcp_counts.can_tell():
        return None
    found = [each.sent + each.received for each in tcp_counts.connections() if str(each.peer[1]) == port]
    return sum(found) if found else None
