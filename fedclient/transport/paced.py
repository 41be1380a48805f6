"""A slower link than the real one, so that traffic can be felt."""

from __future__ import annotations

import time
from collections.abc import Iterator

from common.wire.chunks import CHUNK_BYTES
from fedclient.transport.grpc_transport import Transport

MIN_CHUNK_BYTES = 1 << 14
CHUNK_S = 0.25
"""Chunks are made so small that each takes about this long, for an even flow."""
WINDOW_BYTES = 1 << 16
"""What a server may send ahead of a client that reads slowly on purpose."""


class Pace:
    """Lets bytes pass at a rate; time that was not used is not made up for."""

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

    def join(self, request: bytes) -> bytes:
        """Takes a seat."""
        return self._received(self._inner.join(self._sent(request)))

    def pull(self, request: bytes) -> Iterator[bytes]:
        """Receives a round."""
        for frame in self._inner.pull(self._sent(request)):
            yield self._received(frame)

    def push(self, frames: Iterator[bytes]) -> bytes:
        """Sends an update."""
        return self._received(self._inner.push(self._sent(frame) for frame in frames))

    def progress(self, request: bytes) -> bytes:
        """Asks how much of an update has arrived."""
        return self._received(self._inner.progress(self._sent(request)))

    def renew(self, request: bytes) -> bytes:
        """Gives a sign of life; too small to wait for its turn behind an upload."""
        return self._inner.renew(request)

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
