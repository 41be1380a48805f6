"""Events of settings that a run does without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level


@dataclass(frozen=True, kw_only=True)
class SettingIdle(Event):
    """Weight decay or clipping is asked for outside S_svr, but S_svr is all that is trained."""

    level: ClassVar[Level] = Level.WARNING
    setting: str
    """The flag."""
    switch: str
    """The flag that says where it acts."""

    def text(self) -> str:
        why = "it is for parameters outside of S_svr, and all are in it"
        return f"{self.setting} has no effect: {why}; {self.switch} all makes it act"


@dataclass(frozen=True, kw_only=True)
class SwitchIdle(Event):
    """It is said where or how something acts that nobody has asked for."""

    level: ClassVar[Level] = Level.WARNING
    switch: str
    """The flag that says where or how."""
    setting: str
    """The flag that would ask for it."""

    def text(self) -> str:
        return f"{self.switch} has no effect without {self.setting}"
