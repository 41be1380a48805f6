"""A limit on how often something may happen."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Token bucket: a number of times a second, and up to `burst` at once after a quiet time."""

    def __init__(self, per_second: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now = now
        self._left = float(burst)
        self._at = now()

    def take(self) -> bool:
        """Whether there is room for one more."""
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
