"""How often clients may join: one that joins again and again uses up its own share only."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedserver.access.token_bucket import TokenBucket, TokenBuckets

MAX_WAITING = 1000
"""Clients that may wait for a seat, in addition to those there are seats for."""
JOINS_PER_S = 200.0
JOINS_PER_S_AND_NAME = 5.0
BURST_OF_A_NAME = 20
"""A client on a bad link joins again after every break, several times a second at first."""


class JoinLimit:
    """A limit for each name and one for all, which those who go beyond their own do not touch."""

    def __init__(self, num_clients: int, now: Callable[[], float] = time.monotonic) -> None:
        crowd = MAX_WAITING + num_clients
        self._all = TokenBucket(JOINS_PER_S, crowd, now)
        self._by_name = TokenBuckets(JOINS_PER_S_AND_NAME, BURST_OF_A_NAME, 2 * crowd, now)

    def take(self, name: str) -> bool:
        """Whether this client may join now."""
        return self._by_name.take(name) and self._all.take()
