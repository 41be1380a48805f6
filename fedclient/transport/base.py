"""How a client's encoded messages reach the server, whatever lies between: one verb for each form of call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from common.wire.calls import Call


class Transport(Protocol):
    """Carries calls of federation.proto; what is wrong with them is raised as a FedError."""

    @property
    def chunk_bytes(self) -> int:
        """Size of the chunks that suit this way."""

    def ask(self, call: Call, request: bytes) -> bytes:
        """One message there, one back."""

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """One message there, a stream back."""

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """A stream there, one message back."""

    def close(self) -> None:
        """Hangs up."""
