"""How far the last update of each client has come, and how fast: for those who watch, and nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

LEAST_S = 0.05
"""What took less says nothing about a link."""


@dataclass
class SeenUpload:
    """Of one client."""

    began: float
    received: int = 0
    """Of the whole update, also what came in an earlier stream."""
    came: int = 0
    """In this stream."""
    last: float = 0.0

    @property
    def speed(self) -> float | None:
        """Bytes per second; None if it was too short."""
        took = self.last - self.began
        return self.came / took if took >= LEAST_S else None


class UploadsSeen:
    """By client index."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[int, SeenUpload] = {}

    def begins(self, i: int) -> None:
        """A stream of client i is read from now on."""
        self._seen[i] = SeenUpload(self._now())

    def arrived(self, i: int, received: int, came: int) -> None:
        """So much of its update is here, and so much has just come."""
        seen = self._seen[i]
        seen.received, seen.last = received, self._now()
        seen.came += came

    def of(self, i: int) -> SeenUpload | None:
        """The last one; None if there was none."""
        return self._seen.get(i)
