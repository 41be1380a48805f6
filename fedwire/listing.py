"""Captures as rows: one message each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fedwire.source import Message


def row(message: Message) -> dict[str, Any]:
    """One message as plain values."""
    return {
        "number": message.number,
        "time": datetime.fromtimestamp(message.time_ns / 1e9, UTC).isoformat(timespec="microseconds"),
        "direction": message.direction,
        "client": message.client,
        "round": message.round,
        "rpc": message.rpc,
        "kind": message.content.kind,
        "bytes": message.size,
        "payload": message.content.payload,
        "purpose": message.content.purpose,
        "tensor": message.content.tensor,
        "call": message.call,
    }
