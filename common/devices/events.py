"""What a process tells of its device."""

from __future__ import annotations

from dataclasses import dataclass

from common.devices.names import OFF
from common.events import Event


@dataclass(frozen=True, kw_only=True)
class Computing(Event):
    """The process computes elsewhere than on the processor, or with less precision than usual."""

    device: str
    autocast: str

    def text(self) -> str:
        return f"computing on {self.device}" + ("" if self.autocast == OFF else f" in {self.autocast}")
