"""Who still gives signs of life, and who gets on. Times are those of a clock that never jumps."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from common.wire.chunks import CHUNK_BYTES

PATIENCE = 10.0
"""A client may take this many times as long as any other has taken for a round, or as many leases."""
LEAST_RATE = 4096.0
"""Bytes per second below which an upload does not hold a lease for ever: half of a link of 64 kbit/s."""


class Leases:
    """A client that was not heard of for `seconds` is gone until it is heard of again; None: never gone.

    Signs of life alone do not hold a lease for ever, and neither do drops of an update: a client that a round
    waits for has only so much time until its answer, and earns more by what arrives of its update.
    """

    def __init__(self, seconds: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._now = now
        self._heard: dict[int, float] = {}
        self._held: Counter[int] = Counter()
        self._opened: dict[int, float] = {}
        """Since when a round waits for a client."""
        self._spent: dict[int, float] = {}
        """How long each of them has been there since, without an answer."""
        self._earned: dict[int, float] = {}
        self._stalled: set[int] = set()
        """Those who have used up their time, and have not answered since."""
        self._slowest: list[tuple[float, int]] = []
        """The longest times that two clients have taken for a round."""

    def renew(self, i: int) -> None:
        """Client i was heard of."""
        now = self._now()
        self._spent[i] = self._spent_by(i, now)
        self._heard[i] = now

    @contextmanager
    def held(self, i: int) -> Iterator[None]:
        """Client i is being heard of all the time, for example while its upload gets on."""
        self.renew(i)
        self._held[i] += 1
        try:
            yield
        finally:
            self.renew(i)
            self._held[i] -= 1

    def upload_begins(self, i: int) -> None:
        """What went before, in the queue of uploads, is not the client's fault. It has time for a chunk."""
        self._heard[i] = self._now()
        self.arrived(i, 0)

    def arrived(self, i: int, num_bytes: int) -> None:
        """So much of the update of client i is here; sending the same again earns nothing."""
        earned = (num_bytes + CHUNK_BYTES) / LEAST_RATE
        self._earned[i] = max(self._earned.get(i, 0.0), earned)

    def round_opens(self, clients: Iterable[int]) -> None:
        """A round waits for these; one that has used up its time in an earlier round has a lease left."""
        now = self._now()
        self._stalled |= {i for i in self._opened if self._spent_by(i, now) >= self._allowed(i)}
        self._opened = dict.fromkeys(clients, now)
        self._earned.clear()
        self._spent = {i: self._allowed(i) - self._seconds for i in self._stalled}

    def answered(self, i: int) -> None:
        """No round waits for client i any more."""
        self._stalled.discard(i)
        opened = self._opened.pop(i, None)
        if opened is not None:
            others = [entry for entry in self._slowest if entry[1] != i]
            mine = max([self._now() - opened, *(taken for taken, k in self._slowest if k == i)])
            self._slowest = sorted([*others, (mine, i)], reverse=True)[:2]

    def left(self, i: int) -> float:
        """Seconds until client i is gone; not above zero if it is, or was never heard of."""
        if math.isinf(self._seconds):
            return math.inf
        now = self._now()
        signs = self._seconds if self._held[i] else self._heard.get(i, -math.inf) + self._seconds - now
        if i not in self._opened:
            return signs
        return min(signs, self._allowed(i) - self._spent_by(i, now))

    def stalls(self, i: int) -> bool:
        """Whether client i gives signs of life and has used up its time all the same."""
        now = self._now()
        there = self._held[i] > 0 or now - self._heard.get(i, -math.inf) < self._seconds
        return there and i in self._opened and self._spent_by(i, now) >= self._allowed(i)

    def _allowed(self, i: int) -> float:
        """Time for an answer. A client's own slowness gives it no more, or it could be slower every round."""
        others = max((taken for taken, k in self._slowest if k != i), default=0.0)
        return PATIENCE * max(self._seconds, others) + self._earned.get(i, 0.0)

    def _spent_by(self, i: int, now: float) -> float:
        """Time in which it was silent for longer than a lease was not spent at work."""
        if i not in self._opened:
            return 0.0
        since = max(self._heard.get(i, -math.inf), self._opened[i])
        gap = now - since
        return self._spent.get(i, 0.0) + (gap if self._held[i] else min(gap, self._seconds))
