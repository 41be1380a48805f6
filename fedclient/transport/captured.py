"""Writes every message that a client exchanges into a capture file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.wire.calls import Call
from common.wire.capture import CaptureWriter
from common.wire.messages import CallFollower
from fedclient.transport.base import Transport


class CapturedTransport:
    """Another transport, with every message written down as it passes."""

    def __init__(self, inner: Transport, capture: CaptureWriter, numbers: itertools.count[int]) -> None:
        """`numbers` gives the calls of the process their numbers."""
        self._inner = inner
        self._capture = capture
        self._numbers = numbers

    @property
    def chunk_bytes(self) -> int:
        """As the other transport has it."""
        return self._inner.chunk_bytes

    def ask(self, call: Call, request: bytes) -> bytes:
        """A request is written down before its reply is there."""
        with self._captured(call) as note:
            note(True, request)
            reply = self._inner.ask(call, request)
            note(False, reply)
            return reply

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """Each frame is written down before the client sees it."""
        with self._captured(call) as note:
            note(True, request)
            for frame in self._inner.pull(call, request):
                note(False, frame)
                yield frame

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """Each frame is written down when it is asked for, so one that is never sent is not."""
        with self._captured(call) as note:

            def noted() -> Iterator[bytes]:
                for frame in frames:
                    note(True, frame)
                    yield frame

            reply = self._inner.push(call, noted())
            note(False, reply)
            return reply

    def close(self) -> None:
        """Hangs up; the capture stays open for the next connection."""
        self._inner.close()

    @contextmanager
    def _captured(self, call: Call) -> Iterator[Callable[[bool, bytes], None]]:
        """What writes down the messages of one call."""
        number = next(self._numbers)
        follower = CallFollower(call.name, lambda message: self._capture.write(call.name, number, message))
        try:
            yield follower.note
        finally:
            follower.close()
