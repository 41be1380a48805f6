"""A slower link than the real one, so that traffic can be felt."""

from __future__ import annotations

import time
from collections.abc import Iterator

from common.wire.calls import CALLS, Call
from common.wire.chunks import CHUNK_BYTES
from fedclient.transport.base import Transport

RENEW = CALLS["Renew"]
MIN_CHUNK_BYTES = 1 << 14
CHUNK_S = 0.25
"""Chunks are made so small that each takes about this long, for an even flow."""
PACED_WINDOW_BYTES = 1 << 16
"""What a server may send ahead of a client that reads slowly on purpose."""


class Pace:
    """Lets bytes pass at a rate; time in which none passed is not saved up for later ones."""

    def __init__(self, bits_per_second: float) -> None:
        self.bytes_per_second = bits_per_second / 8
        self._free_at = 0.0

    def spend(self, num_bytes: int) -> None:
        """Waits as long as these bytes take."""
        self._free_at = max(self._free_at, time.monotonic()) + num_bytes / self.bytes_per_second
        time.sleep(max(0.0, self._free_at - time.monotonic()))


class PacedTransport:
    """Another transport at a given speed in either direction."""

    def __init__(self, inner: Transport, up: Pace | None, down: Pace | None) -> None:
        self._inner = inner
        self._up = up
        self._down = down

    @property
    def chunk_bytes(self) -> int:
        """Smaller on a slow link."""
        if self._up is None:
            return self._inner.chunk_bytes
        return int(min(CHUNK_BYTES, max(MIN_CHUNK_BYTES, CHUNK_S * self._up.bytes_per_second)))

    def ask(self, call: Call, request: bytes) -> bytes:
        """A sign of life passes at once: it is small, and comes from a thread of its own during an upload."""
        if call is RENEW:
            return self._inner.ask(call, request)
        return self._received(self._inner.ask(call, self._sent(request)))

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """Frames are read as slowly as the link would bring them, which holds the server back."""
        for frame in self._inner.pull(call, self._sent(request)):
            yield self._received(frame)

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """Each frame is handed on once the link would have taken it."""
        return self._received(self._inner.push(call, (self._sent(frame) for frame in frames)))

    def close(self) -> None:
        """Hangs up."""
        self._inner.close()

    def _sent(self, message: bytes) -> bytes:
        if self._up is not None:
            self._up.spend(len(message))
        return message

    def _received(self, message: bytes) -> bytes:
        if self._down is not None:
            self._down.spend(len(message))
        return message
