"""What a site's policy does, as events."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from common.events import Event, Level


@dataclass(frozen=True, kw_only=True)
class PolicyInForce(Event):
    """The client keeps to a site.toml, and writes down what leaves."""

    file: Path
    outbox: Path

    def text(self) -> str:
        return f"{self.file} is in force; what leaves is written down in {self.outbox}"


@dataclass(frozen=True, kw_only=True)
class ApprovalAwaited(Event):
    """A run is of a kind that the site's owner has not approved yet."""

    level: ClassVar[Level] = Level.WARNING
    kind_of_run: str
    described: str
    command: str

    def text(self) -> str:
        return f"waiting for approval of {self.kind_of_run}: {self.described}; to approve it: {self.command}"


@dataclass(frozen=True, kw_only=True)
class ApprovalGiven(Event):
    """The owner has approved the kind of run that the client waits with."""

    kind_of_run: str

    def text(self) -> str:
        return f"{self.kind_of_run} is approved; going on"


@dataclass(frozen=True, kw_only=True)
class OutboxMended(Event):
    """An earlier process was killed while it wrote to the log of what leaves; nothing had left yet."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"outbox: {self.reason}"
