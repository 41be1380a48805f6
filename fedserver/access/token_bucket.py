"""A limit on how often something may happen."""

from __future__ import annotations

import time
from collections import OrderedDict
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


class TokenBuckets:
    """A token bucket for each key. Of more keys than `most` the one that asked longest ago starts anew."""

    def __init__(
        self, per_second: float, burst: int, most: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now = now
        self._most = most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, key: str) -> bool:
        """Whether there is room for one more of this key."""
        bucket = self._buckets.pop(key, None) or TokenBucket(self._per_second, self._burst, self._now)
        self._buckets[key] = bucket
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return bucket.take()
