"""A run that closed rounds without a member says so where nobody can overlook it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level

MOST_CLIENTS = 10


@dataclass(frozen=True, kw_only=True)
class RoundsWithout(Event):
    """Some rounds are without somebody who was drawn for them."""

    level: ClassVar[Level] = Level.WARNING
    alarming: ClassVar[bool] = True
    without: int
    rounds: int
    """That were closed."""
    left_out: Sequence[tuple[str, str, str]]
    """Client, rounds such as 4-6,9, and why; one client may be in it with several reasons."""

    def text(self) -> str:
        return described(self.without, self.rounds, self.left_out)


def described(without: int | str, rounds: int, left_out: Sequence[tuple[str, str, str]]) -> str:
    """3 of 20 rounds without: hamburg (rounds 4-6, deadline)."""
    names: dict[str, list[str]] = {}
    for client, which, reason in left_out:
        word = "round" if which.isdecimal() else "rounds"
        names.setdefault(client, []).append(f"{word} {which}, {reason}")
    clients = [f"{name} ({'; '.join(details)})" for name, details in names.items()]
    more = len(clients) - MOST_CLIENTS
    told = ", ".join(clients[:MOST_CLIENTS]) + (f" and {more} more clients" if more > 0 else "")
    return f"{without} of {rounds} rounds without: {told}"
