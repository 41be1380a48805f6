"""What happens in the rehearsal before round 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level

NAME_COLUMN = 16


@dataclass(frozen=True, kw_only=True)
class CanaryOpened(Event):
    """Clients can pull the rehearsal."""

    clients: int
    steps: int

    def text(self) -> str:
        return f"canary: {self.clients} clients train {self.steps} steps each, of which nothing counts"


@dataclass(frozen=True, kw_only=True)
class CanaryAnswer(Event):
    """A row of the table: what a client took, or, as `reason`, what is in its way."""

    examples: int
    down_s: float | None = None
    """None also for a client of an earlier release, which does not tell."""
    train_s: float | None = None
    up_s: float | None = None
    loss: float | None = None

    @property
    def level(self) -> Level:  # type: ignore[override]
        """Who is not ready calls for attention."""
        return Level.WARNING if self.reason else Level.NOTICE

    def text(self) -> str:
        start = f"canary: {self.client.ljust(NAME_COLUMN)}"
        if self.reason:
            return f"{start} NO GO  {self.reason}"
        loss = "" if self.loss is None else f"{self.loss:.4f}"
        return (
            f"{start} go     down {_seconds(self.down_s)}  train {_seconds(self.train_s)}  "
            f"up {_seconds(self.up_s)}  loss {loss}  {self.examples} examples"
        )


def _seconds(value: float | None) -> str:
    return "      -" if value is None else f"{value:5.2f} s"


@dataclass(frozen=True, kw_only=True)
class CanaryPassed(Event):
    """Everybody is ready."""

    level: ClassVar[Level] = Level.NOTICE
    clients: int
    seconds: float

    def text(self) -> str:
        return f"canary: go for all {self.clients} clients after {self.seconds:.1f} s; round 1 begins"


@dataclass(frozen=True, kw_only=True)
class FirstVariatesAsked(Event):
    """Clients can pull the first x, to answer with their gradient there (`--warm-variates`)."""

    clients: int

    def text(self) -> str:
        return f"before round 1: {self.clients} clients compute their gradient at x"


@dataclass(frozen=True, kw_only=True)
class FirstVariatesKnown(Event):
    """Every client's c_i starts as its gradient at the first x, and c as their mean."""

    clients: int
    norm: float
    """Of c."""

    def text(self) -> str:
        return f"before round 1: c is the mean gradient of {self.clients} clients, its norm {self.norm:.3g}"
