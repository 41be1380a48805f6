"""What happens to the saves of a round under way, as events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level


@dataclass(frozen=True, kw_only=True)
class TrainingResumed(Event):
    """An earlier process was killed inside the round; its steps up to here are not trained again."""

    step: int
    steps: int

    def text(self) -> str:
        return f"round {self.round}: resumed at step {self.step} of {self.steps}"


@dataclass(frozen=True, kw_only=True)
class SaveStale(Event):
    """A save of another round, of another x or under other settings was removed."""

    level: ClassVar[Level] = Level.DETAIL

    def text(self) -> str:
        return f"round {self.round}: what was saved inside a round belongs to another one; removed"


@dataclass(frozen=True, kw_only=True)
class SaveDamaged(Event):
    """A save is not as it was written, and was removed."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"round {self.round}: {self.reason}; removed, and training from the round's start"


@dataclass(frozen=True, kw_only=True)
class SaveFailed(Event):
    """The disk does not take a save; the round goes on, and the next save is tried."""

    level: ClassVar[Level] = Level.WARNING
    step: int

    def text(self) -> str:
        return f"round {self.round}: step {self.step} cannot be saved: {self.reason}; going on without"
