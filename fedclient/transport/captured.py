"""Writes every message that a client exchanges into a capture file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.wire.capture import CaptureWriter
from common.wire.messages import CallFollower
from fedclient.transport.grpc_transport import Transport


class CapturedTransport:
    """Another transport, with an ear on it."""

    def __init__(self, inner: Transport, capture: CaptureWriter, numbers: itertools.count[int]) -> None:
        """`numbers` gives the calls of the process their numbers."""
        self._inner = inner
        self._capture = capture
        self._numbers = numbers

    @property
    def chunk_bytes(self) -> int:
        """As the other transport has it."""
        return self._inner.chunk_bytes

    def join(self, request: bytes) -> bytes:
        """Takes a seat."""
        return self._unary("Join", self._inner.join, request)

    def pull(self, request: bytes) -> Iterator[bytes]:
        """Receives a round."""
        with self._call("PullRound") as note:
            note(True, request)
            for frame in self._inner.pull(request):
                note(False, frame)
                yield frame

    def push(self, frames: Iterator[bytes]) -> bytes:
        """Sends an update."""
        with self._call("PushUpdate") as note:

            def noted() -> Iterator[bytes]:
                for frame in frames:
                    note(True, frame)
                    yield frame

            reply = self._inner.push(noted())
            note(False, reply)
            return reply

    def progress(self, request: bytes) -> bytes:
        """Asks how much of an update has arrived."""
        return self._unary("UpdateProgress", self._inner.progress, request)

    def renew(self, request: bytes) -> bytes:
        """Gives a sign of life."""
        return self._unary("Renew", self._inner.renew, request)

    def close(self) -> None:
        """Hangs up."""
        self._inner.close()

    def _unary(self, rpc: str, method: Callable[[bytes], bytes], request: bytes) -> bytes:
        with self._call(rpc) as note:
            note(True, request)
            reply = method(request)
            note(False, reply)
            return reply

    @contextmanager
    def _call(self, rpc: str) -> Iterator[Callable[[bool, bytes], None]]:
        """What writes down the messages of one call."""
        number = next(self._numbers)
        followed = CallFollower(rpc, lambda message: self._capture.write(rpc, number, message))
        try:
            yield followed.note
        finally:
            followed.close()
