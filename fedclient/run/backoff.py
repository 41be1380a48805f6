"""How long a client waits between attempts to reach its server, and for how long it has not heard of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0
GROWTH = 1.6


class Backoff:
    """Waits grow as long as the server is silent. Whatever moves the client on ends the silence."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._wait = FIRST_WAIT_S
        self._silent_since: float | None = None
        self._reached: object = None

    def heard(self) -> None:
        """The server has answered."""
        self._silent_since, self._wait = None, FIRST_WAIT_S

    def failed(self, reached: object) -> float | None:
        """How long the server has been silent; None if this failure is the first sign of it.

        `reached` is how far the client has come: a transfer that gets on, however often it breaks, is no
        silence.
        """
        if reached != self._reached:
            self._reached = reached
            self.heard()
        now = self._now()
        if self._silent_since is None:
            self._silent_since = now
            return None
        return now - self._silent_since

    def next_wait(self) -> float:
        """Seconds until the next attempt, not quite the same for all clients of a server that is gone."""
        wait = self._wait * random.uniform(0.8, 1.2)
        self._wait = min(self._wait * GROWTH, LONGEST_WAIT_S)
        return wait
