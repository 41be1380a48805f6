"""A finished update, as it travels and as it waits on disk until the server has counted it.

On disk: the magic, the header's length and its CRC32C (four bytes each, little-endian), the header as it
travels, then the bytes of all tensors in the order of the manifest. The update's id has the checksum of their
chunks' checksums, so that each byte is looked at once, for the id and for the chunks that carry it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import google_crc32c
import numpy as np

from common.errors import StateError, WireError
from common.tensors.layout import Flat, Layout
from common.wire.chunks import Position, chunk_checksums, parsed
from common.wire.encoding import Encoding
from common.wire.manifest import manifest, read_manifest
from fedpvr.v1 import federation_pb2 as pb

MAGIC = b"FEDPVRU2"
_LENGTHS = struct.Struct("<II")


@dataclass(frozen=True)
class Sender:
    """Whose update it is, and of what."""

    run_id: str
    client: str
    fingerprint: str
    examples: int


@dataclass(frozen=True, eq=False)
class StoredUpdate:
    """What a client hands in for one round. Its `id` says whether two have the same content."""

    round: int
    encoding: Encoding
    payload: Flat
    """y_i and, where it is sent, c_i, as they travel."""
    steps: int
    loss: float
    validation_accuracy: float | None
    seconds: float
    evaluation: pb.SiteCounts | None = None
    """Of x, as it travels, where the round asked for it."""
    canary_pull_seconds: float | None = None
    """Of a rehearsal's update only."""
    measures: pb.DriftMeasures | None = None
    """How the steps went, as it travels, where the round asked for it."""

    @property
    def is_apart(self) -> bool:
        """Whether it is for an exchange before round 1: only there it took no step, or is a rehearsal's."""
        return self.steps == 0 or self.canary_pull_seconds is not None

    @cached_property
    def checksums(self) -> dict[Position, int]:
        """CRC32C of every chunk."""
        return chunk_checksums(self.encoding.encoded, self.payload)

    @cached_property
    def id(self) -> str:
        """Alike for alike bytes, so that an interrupted upload is never continued by another update's."""
        sums = struct.pack(f"<{len(self.checksums)}I", *self.checksums.values())
        return f"{self.round}-{google_crc32c.value(sums):08x}"

    @property
    def num_bytes(self) -> int:
        """How many there are to send, headers left out."""
        return self.bytes_before((len(self.encoding.encoded.specs), 0))

    def bytes_before(self, position: Position) -> int:
        """How many of them come before a position."""
        tensor, offset = position
        return sum(spec.num_bytes for spec in self.encoding.encoded.specs[:tensor]) + offset

    def header(self, sender: Sender) -> pb.UpdateHeader:
        """What opens the stream."""
        return pb.UpdateHeader(
            run_id=sender.run_id,
            client=sender.client,
            round=self.round,
            update_id=self.id,
            steps=self.steps,
            examples=sender.examples,
            loss=self.loss,
            validation_accuracy=self.validation_accuracy,
            fingerprint=sender.fingerprint,
            tensors=manifest(self.encoding),
            train_seconds=self.seconds,
            evaluation=self.evaluation,
            canary_pull_seconds=self.canary_pull_seconds,
            measures=self.measures,
        )

    def stored(self, sender: Sender) -> Iterator[bytes | memoryview]:
        """The file's content, in pieces; nothing is computed for who does not ask."""
        header = self.header(sender).SerializeToString()
        yield from (MAGIC, _LENGTHS.pack(len(header), google_crc32c.value(header)), header, self.payload.data)

    @classmethod
    def restored(cls, data: bytes, sender: Sender) -> StoredUpdate:
        """What was stored; raises if it is damaged, or not this sender's.

        The payload is a view of `data`: an update may be as large as the model, and is in memory once.
        """
        start = len(MAGIC) + _LENGTHS.size
        if len(data) < start or not data.startswith(MAGIC):
            raise StateError("is not a stored update")
        length, checksum = _LENGTHS.unpack_from(data, len(MAGIC))
        encoded = data[start : start + length]
        if len(encoded) != length or google_crc32c.value(encoded) != checksum:
            raise StateError("is damaged: its header is not whole")
        try:
            header = parsed(pb.UpdateHeader, encoded)
            encoding = read_manifest(header.tensors)
        except WireError as error:
            raise StateError(f"is damaged: {error}") from error
        found = Sender(header.run_id, header.client, header.fingerprint, header.examples)
        if found != sender:
            raise StateError(f"belongs to {found}, this client is {sender}")
        if len(data) - start - length != encoding.encoded.num_bytes:
            raise StateError("is damaged: its tensors are not whole")
        known, canary = (header.HasField(name) for name in ("validation_accuracy", "canary_pull_seconds"))
        stored_update = cls(
            round=header.round,
            encoding=encoding,
            payload=np.frombuffer(data, np.uint8)[start + length :],
            steps=header.steps,
            loss=header.loss,
            validation_accuracy=header.validation_accuracy if known else None,
            seconds=header.train_seconds,
            evaluation=header.evaluation if header.HasField("evaluation") else None,
            canary_pull_seconds=header.canary_pull_seconds if canary else None,
            measures=header.measures if header.HasField("measures") else None,
        )
        if stored_update.id != header.update_id or not _padding_is_zero(
            encoding.encoded, stored_update.payload
        ):
            raise StateError("is damaged: its checksum is wrong")
        return stored_update


def _padding_is_zero(layout: Layout, payload: Flat) -> bool:
    """Whether what lies between tensors, and is never sent, is as it was written."""
    starts = [*layout.offsets[1:], layout.num_bytes]
    ends = (start + spec.num_bytes for start, spec in zip(layout.offsets, layout.specs, strict=True))
    return not any(payload[end:start].any() for end, start in zip(ends, starts, strict=True))
