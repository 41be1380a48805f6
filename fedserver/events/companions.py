"""Events of the companions of a server: processes that run beside it."""

from __future__ import annotations

from dataclasses import dataclass

from common.events import Event


@dataclass(frozen=True, kw_only=True)
class MetricsServed(Event):
    """Prometheus can ask."""

    url: str

    def text(self) -> str:
        return f"metrics for Prometheus at {self.url}"


@dataclass(frozen=True, kw_only=True)
class Tracked(Event):
    """A tracker is told of every round."""

    target: str

    def text(self) -> str:
        return f"rounds are told to {self.target}"
