"""Bytes of messages by client, direction, purpose and tensor: what a ledger and a capture both add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from common.records.traffic import DirectionBytes, PurposeBytes, Traffic
from common.tensors.layout import Layout
from common.wire.chunks import CHUNK_BYTES, varint
from common.wire.messages import CANARY, DIRECTIONS, FROZEN, PURPOSES, Content, chunk_content

Key = tuple[str, str, str, str]
"""Client, direction, purpose, and tensor or, for `other`, what the message was."""
Sized = Iterable[tuple[Content, int]]
"""What messages are, and how many bytes they take."""


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


def chunk_sizes(layout: Layout, first_index: int = 0) -> Iterator[tuple[Content, int]]:
    """What the frames of each tensor of a buffer take on the wire, without making them.

    Exact but for a chunk whose CRC32C happens to be zero: protobuf leaves that out, and saves five bytes.
    """
    for index, spec in enumerate(layout.specs, start=first_index):
        if spec.num_bytes:
            yield (
                chunk_content(spec.purpose, spec.name, spec.num_bytes),
                _frames_of_tensor(index, spec.num_bytes),
            )


@lru_cache(maxsize=1 << 12)
def _frames_of_tensor(index: int, num_bytes: int) -> int:
    starts = range(0, num_bytes, CHUNK_BYTES)
    return sum(_frame_size(index, start, min(CHUNK_BYTES, num_bytes - start)) for start in starts)


def _frame_size(index: int, offset: int, payload: int) -> int:
    """Of a frame with a chunk: a tag and a length, and in it numbers that are not zero, CRC32C and bytes."""
    numbers = sum(1 + len(varint(number)) for number in (index, offset) if number)
    chunk = numbers + 5 + 1 + len(varint(payload)) + payload
    return 1 + len(varint(chunk)) + chunk
