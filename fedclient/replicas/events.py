"""What happens before clients live, and to those that are replicas, as events."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level


@dataclass(frozen=True, kw_only=True)
class Starting(Event):
    """The process begins, and has yet to load what it needs."""

    server: str
    replicas: tuple[str, ...] = ()
    """Names of the clients, where there are several."""

    def text(self) -> str:
        if not self.replicas:
            return f"starting; the server is {self.server}"
        first, last = self.replicas[0], self.replicas[-1]
        return f"starting {len(self.replicas)} clients, {first} to {last}; the server is {self.server}"


@dataclass(frozen=True, kw_only=True)
class ReplicaFailed(Event):
    """The process of a replica has ended, and not well; the others go on."""

    level: ClassVar[Level] = Level.WARNING
    code: int
    """Its exit code or, below zero, the signal that killed it."""
    left: int
    """Processes of other replicas that still run."""

    def text(self) -> str:
        how = f"exit code {self.code}" if self.code > 0 else f"killed by {signal.Signals(-self.code).name}"
        return f"ended ({how}); " + (f"{self.left} others go on" if self.left else "no other is left")
