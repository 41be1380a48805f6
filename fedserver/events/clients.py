"""Who comes, goes and is turned away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level


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
        return f"waiting for clients; {seats} are here"


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

    def text(self) -> str:
        return f"{self.client} leaves: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class TurnedAway(Event):
    """A caller was refused."""

    level: ClassVar[Level] = Level.WARNING
    unsaid: int
    """Refusals for the same reason since the last such event."""

    def text(self) -> str:
        more = f" ({self.unsaid} more since the line before)" if self.unsaid else ""
        return f"turned away: {self.reason}{more}"
