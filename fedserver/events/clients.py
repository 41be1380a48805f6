"""Who comes, goes and is turned away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level

MOST_NAMES = 5


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, kw_only=True)
class ClientsAwaited(Event):
    """The run waits for clients before its first round; `client` has just come, if it is named."""

    here: int
    needed: int
    at_least: bool
    """Whether more may take part than are needed."""

    def text(self) -> str:
        seats = f"{self.here} of {'at least ' if self.at_least else ''}{self.needed} clients"
        if self.client:
            return f"{self.client} is here; {seats}"
        more = self.needed - self.here
        waiting = f"waiting for {more} more" if self.here and more > 0 else "waiting for clients"
        return f"{waiting}; {seats} are here"


@dataclass(frozen=True, kw_only=True)
class ClientsGathered(Event):
    """Nobody else has come for a while: N is known."""

    here: int

    def text(self) -> str:
        return f"starting with {self.here} clients: nobody else has joined for a while"


@dataclass(frozen=True, kw_only=True)
class ClientJoined(Event):
    """A client has taken a seat after the start."""

    taken: int
    seats: int

    def text(self) -> str:
        return f"{self.client} joins; {self.taken} of {self.seats} seats are taken"


@dataclass(frozen=True, kw_only=True)
class ClientLeft(Event):
    """A client will not come back by itself."""

    rule: str = ""
    """Of its site, where that forbids to go on."""

    def text(self) -> str:
        if self.rule:
            prefix = f"rule {self.rule}: "
            return f"site {self.client} refused: {prefix}{self.reason.removeprefix(prefix)}"
        return f"{self.client} leaves: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class ClientHeld(Event):
    """A client does not go on before its site has decided."""

    rule: str

    def text(self) -> str:
        return (
            f"site {self.client} has yet to decide, under its rule {self.rule}; until then it is waited for"
        )


@dataclass(frozen=True, kw_only=True)
class ClientStopped(Event):
    """A client's process ends, and may come back; `round` is one that waits for it."""

    def text(self) -> str:
        waits = f"; round {self.round} waits for it" if self.round else ""
        return f"{self.client} has stopped and may come back{waits}"


@dataclass(frozen=True, kw_only=True)
class ClientMissing(Event):
    """A round waits for a client that is not heard of."""

    level: ClassVar[Level] = Level.WARNING
    silence: str
    updates: int
    drawn: int

    def text(self) -> str:
        state = f"({self.updates} of {self.drawn} in)"
        return f"{self.client} {self.silence}; round {self.round} waits for it {state}"


@dataclass(frozen=True, kw_only=True)
class ClientsMissing(Event):
    """The same for many at once."""

    level: ClassVar[Level] = Level.WARNING
    clients: Sequence[str]
    updates: int
    drawn: int

    def text(self) -> str:
        return (
            f"{listed(self.clients)} have not been heard of; "
            f"round {self.round} waits for them ({self.updates} of {self.drawn} in)"
        )


@dataclass(frozen=True, kw_only=True)
class ClientBack(Event):
    """A client that was missing, had stopped or had left is heard of again."""

    def text(self) -> str:
        return f"{self.client} is back"


@dataclass(frozen=True, kw_only=True)
class LinesLeftOut(Event):
    """A client comes and goes so often that not all of it is told."""

    lines: int

    def text(self) -> str:
        return f"{self.client} came and went {self.lines} more times than these lines say"


@dataclass(frozen=True, kw_only=True)
class TurnedAway(Event):
    """A caller was refused."""

    level: ClassVar[Level] = Level.WARNING
    unsaid: int
    """Refusals for the same reason since the last such event."""

    def text(self) -> str:
        more = f" ({self.unsaid} more since the line before)" if self.unsaid else ""
        return f"turned away: {self.reason}{more}"
