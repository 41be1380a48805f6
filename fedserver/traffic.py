"""Bytes by direction and purpose, as they pass the gRPC boundary of the server."""

from __future__ import annotations

from collections import Counter

from common.tensors import Purpose

DIRECTIONS = ("down", "up")
PURPOSES = ("model", "buffer", "control", "other")
_OF_TENSOR = {
    Purpose.MODEL: "model",
    Purpose.BUFFER: "buffer",
    Purpose.CONTROL: "control",
    Purpose.CLIENT_CONTROL: "control",
}


class Traffic:
    """Counts tensor payload under its purpose and everything around it as `other`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._closed: Counter[tuple[str, str]] = Counter()

    def add(
        self, direction: str, message_bytes: int, purpose: Purpose | None = None, payload: int = 0
    ) -> None:
        """One protobuf message, of which `payload` bytes are a tensor's."""
        if purpose is not None:
            self._counts[direction, _OF_TENSOR[purpose]] += payload
        self._counts[direction, "other"] += message_bytes - payload

    def total(self) -> dict[str, dict[str, int]]:
        """All bytes since the server started."""
        return _table(self._counts)

    def since_last(self) -> dict[str, dict[str, int]]:
        """Bytes since this was last asked: those of the round that closes."""
        counts = self._counts - self._closed
        self._closed = self._counts.copy()
        return _table(counts)


def _table(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    return {d: {p: counts[d, p] for p in PURPOSES} for d in DIRECTIONS}
