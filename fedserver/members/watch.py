"""Says who is missing of those whom a round waits for, and says it again now and then."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from fedserver.members.presence import Presence

REMIND_S = (30.0, 60.0, 120.0, 300.0)
"""When it is said again that a client is missing; later on, at twice the time before."""
LEAST_S = 0.05
"""Between two looks."""


def next_reminder(said_s: float) -> float:
    """When to say again what has been said after so many seconds."""
    return next((step for step in REMIND_S if step > said_s), 2 * said_s)


class Watch:
    """Of one run; its rounds come one after the other."""

    def __init__(self, presence: Presence, came_from: Callable[[int], int | None]) -> None:
        """`came_from` counts the bytes that have come from a client, whole messages or not."""
        self._presence = presence
        self._came_from = came_from
        self._bytes: dict[int, int | None] = {}
        self._said_s: dict[int, float] = {}
        """How long a client had been silent when that was last said."""

    def look(self, awaited: Collection[int]) -> tuple[list[int], float]:
        """Of whom it is to be said now that they are missing, and in how many seconds to look again."""
        due, again_s = [], math.inf
        for i in awaited:
            silent, limit = self._presence.silent_s(i), self._presence.missing_after_s(i)
            if silent < self._said_s.get(i, 0.0):
                del self._said_s[i]  # It was back, and is silent again.
            if silent < limit / 2:
                self._bytes.pop(i, None)
                self._said_s.pop(i, None)
                again_s = min(again_s, limit / 2 - silent)
            elif silent <= limit:
                self._bytes.setdefault(i, self._came_from(i))
                again_s = min(again_s, limit - silent + LEAST_S)
            elif self._moves(i):
                again_s = min(again_s, limit / 2)
            else:
                next_s = self._next_s(i)
                if silent >= next_s:
                    due.append(i)
                    self._said_s[i] = silent
                    self._presence.told(i)
                # Not only when it is to be said again: it may come back and go once more.
                again_s = min(again_s, max(self._next_s(i) - silent, LEAST_S), self._presence.sign_s)
        return due, again_s

    def _moves(self, i: int) -> bool:
        """Whether bytes of a silent client have come: a message on a slow link takes its time."""
        if i not in self._bytes or i in self._said_s:
            return False
        before, now = self._bytes.pop(i), self._came_from(i)
        if now is None or now == before:
            return False
        self._presence.seen_to_move(i)
        return True

    def _next_s(self, i: int) -> float:
        """The silence at which to speak of a client."""
        if i not in self._said_s:
            # Its good-bye was a line already.
            return REMIND_S[0] if self._presence.is_stopped(i) else 0.0
        said_s = self._said_s[i]
        if self._presence.only_once(i):
            return math.inf
        return next_reminder(said_s)
