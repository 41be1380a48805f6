"""Bytes of messages by client, direction, purpose and tensor: what a ledger and a capture both add up to."""

from __future__ import annotations

from collections import Counter

from common.records.traffic import DirectionBytes, PurposeBytes, Traffic
from common.wire.messages import CANARY, DIRECTIONS, FROZEN, PURPOSES, Content

Key = tuple[str, str, str, str]
"""Client, direction, purpose, and tensor or, for `other`, what the message was."""


class ByteCounts:
    """Payload and encoded bytes by key."""

    def __init__(self) -> None:
        self.payload: Counter[Key] = Counter()
        self.encoded: Counter[Key] = Counter()

    def add(self, client: str, rpc: str, up: bool, content: Content, size: int) -> None:
        """Counts one message of this many bytes."""
        what = content.tensor or f"{rpc} {content.kind}"
        self.add_bytes((client, DIRECTIONS[up], content.purpose, what), content.payload, size)

    def add_bytes(self, key: Key, payload: int, encoded: int) -> None:
        """Counts bytes whose key is known."""
        self.payload[key] += payload
        self.encoded[key] += encoded

    def update(self, other: ByteCounts) -> None:
        """Counts all that another has counted."""
        self.payload.update(other.payload)
        self.encoded.update(other.encoded)

    def by_purpose(self) -> DirectionBytes:
        """Payload by direction and purpose; what envelopes and other messages take is `other`."""
        table = {d: dict.fromkeys((*PURPOSES, CANARY), 0) for d in DIRECTIONS}
        for (_, direction, _, _), encoded in self.encoded.items():
            table[direction]["other"] += encoded
        for (_, direction, purpose, _), payload in self.payload.items():
            table[direction][purpose] += payload
            table[direction]["other"] -= payload
        return DirectionBytes(**{d: _by_purpose(counts) for d, counts in table.items()})

    def detailed(self) -> Traffic:
        """Payload and encoded bytes by client, direction, purpose and tensor."""
        table: Traffic = {}
        for key, encoded in self.encoded.items():
            client, direction, purpose, tensor = key
            places = table.setdefault(client, {}).setdefault(direction, {}).setdefault(purpose, {})
            places[tensor] = (self.payload[key], encoded)
        return table

    def by_client(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Payload and encoded bytes by client and direction."""
        payload: Counter[tuple[str, str]] = Counter()
        encoded: Counter[tuple[str, str]] = Counter()
        for key, count in self.encoded.items():
            encoded[key[:2]] += count
            payload[key[:2]] += self.payload[key]
        return {key: (payload[key], encoded[key]) for key in sorted(encoded)}


def _by_purpose(counts: dict[str, int]) -> PurposeBytes:
    """Frozen tensors and a rehearsal are named only where there were any."""
    return PurposeBytes(**{name: n for name, n in counts.items() if n or name not in (FROZEN, CANARY)})
