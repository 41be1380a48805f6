"""What happens when a client evaluates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level


@dataclass(frozen=True, kw_only=True)
class TestUnused(Event):
    """The client has a test set, but the server has one itself."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return "--test is not used: this server evaluates on data of its own"


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """The server has what the last x does on this client's data."""

    examples: int

    def text(self) -> str:
        return f"evaluated x after round {self.round} on {self.examples} examples"


@dataclass(frozen=True, kw_only=True)
class EvaluationRejected(Event):
    """The server does not take what this client counted."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"the server refused the evaluation of x after round {self.round}: {self.reason}"
