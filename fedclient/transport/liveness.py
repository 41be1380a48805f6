"""Gives up a connection that looks open but carries nothing any more.

Bytes that come twice or damaged over a plain connection can leave either side waiting for the rest of a frame
that never ends; a half-open connection and a server that hangs look alike. gRPC's own pings take minutes to
tell, because on a slow link they wait behind a megabyte of data. So, while a call is open, the kernel's count
of bytes is looked at: a slow link passes some. If next to nothing passes, the server is asked for its health
over the same connection; if that is not answered either, the connection is given up. Transfers go on
where they stopped, over the next one. A server that answers may still not know of a call any more, if damaged
bytes have put the end of it into another stream; so a call without a word is asked again after a while.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from common.access import tcp_counts

MOVING_S = 10.0
"""How long next to nothing may pass in a transfer before the server is asked whether it is there."""
WAITING_S = 40.0
"""The same while the server has nothing to say, or has just answered."""
ANSWER_S = 15.0
"""How long the answer may take."""
OVERDUE_S = 60.0
"""A call that has been silent for this long may be lost, although the server answers."""
LOOK_S = 2.5
WAITING_LOOK_S = 10.0
"""The same while the server has nothing to say: a thousand clients of a machine wait most of the time."""
COUNT_S = 1.0
"""All clients of a process share a count of bytes that is not older than this."""
LEAST_BYTES = 1024
"""Less than this is next to nothing: pings are."""


@dataclass(eq=False)
class WatchedCall:
    """An open call."""

    may_wait: bool
    """The server may still take its time before it says the first word."""
    since: float
    """When it began, or last had a word from the server."""
    cancel: Callable[[], object] | None = None
    overdue: bool = False
    """It was cancelled because it may be lost."""


class Liveness:
    """Watches a connection, in a thread of its own, as long as calls are open on it."""

    def __init__(
        self,
        passed: Callable[[], int | None],
        answers: Callable[[float], bool],
        hang_up: Callable[[float], None],
        *,
        loses_calls: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`passed`: bytes so far, None if nobody can tell; `answers`: does the server, in so many seconds?"""
        self._passed = passed
        self._answers = answers
        self._hang_up = hang_up
        self._loses_calls = loses_calls
        self._now = now
        self._bytes = 0
        self._counted_at = -math.inf
        self._quiet_since = 0.0
        self._patience_s = MOVING_S
        self._open: dict[WatchedCall, None] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def call(self, *, may_wait: bool) -> Iterator[WatchedCall]:
        """A call is open in the block."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="liveness", daemon=True)
            self._thread.start()
        call = WatchedCall(may_wait, self._now())
        self._open[call] = None
        self._moved()
        try:
            yield call
        finally:
            del self._open[call]

    def heard(self, call: WatchedCall) -> None:
        """A frame has come."""
        call.may_wait, call.since = False, self._now()
        self._moved()

    def close(self) -> None:
        """Watches no longer."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S) and self.look():
            pass

    def look(self) -> bool:
        """Looks once; returns whether the connection is still good."""
        calls = list(self._open)
        waits = all(call.may_wait for call in calls)
        patience_s = WAITING_S if waits else self._patience_s
        if waits and self._quiet_s() < patience_s and self._now() < self._counted_at + WAITING_LOOK_S:
            return True
        if not calls or self._passes() or self._quiet_s() < patience_s:
            return True
        if self._answers(ANSWER_S):
            self._cancel_overdue(calls)
            self._moved()
            self._patience_s = WAITING_S
        elif not self._passes() and self._open and not self._closed.is_set():
            self._hang_up(self._quiet_s())
            return False
        return True

    def _cancel_overdue(self, calls: list[WatchedCall]) -> None:
        for call in calls:
            if self._loses_calls and call.cancel is not None and self._now() - call.since >= OVERDUE_S:
                call.overdue = True
                call.cancel()

    def _passes(self) -> bool:
        """Whether enough has passed since it last did, or nobody can tell."""
        passed = self._passed()
        self._counted_at = self._now()
        if passed is not None and 0 <= passed - self._bytes < LEAST_BYTES:
            return False
        self._bytes = passed or 0
        self._moved()
        return True

    def _moved(self) -> None:
        self._quiet_since, self._patience_s = self._now(), MOVING_S

    def _quiet_s(self) -> float:
        return self._now() - self._quiet_since


class _Counts:
    """Bytes on this process's connections by the peer's port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = -math.inf
        self._bytes: Counter[str] = Counter()

    def of_port(self, port: str) -> int | None:
        """To and from a port; None if there is no connection to it."""
        with self._lock:
            if port not in self._bytes or time.monotonic() >= self._at + COUNT_S:
                self._bytes = Counter()
                for each in tcp_counts.connections():
                    self._bytes[str(each.peer[1])] += each.sent + each.received
                self._at = time.monotonic()
            return self._bytes.get(port)


_COUNTS = _Counts()


def bytes_to(server: str) -> int | None:
    """Bytes that have passed, either way, on connections to a server's port; None if nobody can tell."""
    return _COUNTS.of_port(server.rpartition(":")[2]) if tcp_counts.can_tell() else None
