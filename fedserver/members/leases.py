"""Who still gives signs of life. Times are those of a clock that never jumps."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Leases:
    """A client that was not heard of for `seconds` is gone until it is heard of again; None: never gone."""

    def __init__(self, seconds: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._now = now
        self._heard: dict[int, float] = {}
        self._held: Counter[int] = Counter()

    def renew(self, i: int) -> None:
        """Client i was heard of."""
        self._heard[i] = self._now()

    @contextmanager
    def held(self, i: int) -> Iterator[None]:
        """Client i is being heard of all the time, for example while its upload gets on."""
        self._held[i] += 1
        try:
            yield
        finally:
            self._held[i] -= 1
            self.renew(i)

    def left(self, i: int) -> float:
        """Seconds until client i is gone; not above zero if it is, or was never heard of."""
        if self._held[i]:
            return self._seconds
        return (
            self._heard.get(i, -math.inf) + self._seconds - self._now()
            if self._seconds < math.inf
            else math.inf
        )
