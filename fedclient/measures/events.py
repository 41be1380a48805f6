"""What a client says of what it measures."""

from __future__ import annotations

from dataclasses import dataclass

from common.events import Event


@dataclass(frozen=True, kw_only=True)
class GradientComputed(Event):
    """The gradient of all examples at the first x is ready for the server, as this client's c_i."""

    loss: float
    seconds: float

    def text(self) -> str:
        return f"before round 1: gradient of all examples at x, loss {self.loss:.4f}, {self.seconds:.1f} s"
