"""A message of every kind, with something in every field: for tests that go through all calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import google_crc32c
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

from common.tensors.layout import Flat, Layout
from common.wire.bundles import frames_in
from common.wire.calls import Call
from common.wire.chunks import read_chunk, sealed
from common.wire.receiver import Receiver
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.tensor_pb2 import TensorChunk

M = TypeVar("M", bound=Message)
_TEXT, _FLOATS = Field.CPPTYPE_STRING, (Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT)


def sample(kind: type[M], text: str = "somebody") -> M:
    """Fields of text hold `text`, numbers are 1, lists have one element; of alternatives the first is set.

    A checksum is not a field like others: `sealed` adds it.
    """
    message = kind()
    taken: set[str] = {"_message_crc32c"}
    for field in message.DESCRIPTOR.fields:
        group = field.containing_oneof.name if field.containing_oneof is not None else ""
        if group in taken:
            continue
        taken |= {group} - {""}
        _fill(message, field, text)
    return message


def _fill(message: Message, field: Any, text: str) -> None:
    place: Any = getattr(message, field.name)
    if field.message_type is not None:
        inner = sample(field.message_type._concrete_class, text)
        if hasattr(place, "append"):
            place.append(inner)
        else:
            place.CopyFrom(inner)
        return
    value: Any = 1
    if field.cpp_type == _TEXT:
        value = text.encode() if field.type == Field.TYPE_BYTES else text
    elif field.cpp_type in _FLOATS:
        value = 1.0
    if hasattr(place, "append"):
        place.append(value)
    else:
        setattr(message, field.name, value)


def request(call: Call, text: str = "somebody") -> bytes:
    """What opens a call."""
    return sealed(sample(call.request, text))


def chunk_of(tensor: int, offset: int, data: Flat) -> TensorChunk:
    """A chunk with its checksum."""
    checksum = google_crc32c.value(data.tobytes())
    return TensorChunk(tensor=tensor, offset=offset, crc32c=checksum, data=data.tobytes())


def chunk_frame(tensor: int, offset: int, data: Flat) -> bytes:
    """A frame with one chunk, as protobuf writes it."""
    return pb.RoundFrame(chunk=chunk_of(tensor, offset, data)).SerializeToString()


def received(layout: Layout, messages: Iterable[bytes]) -> list[bytes]:
    """What a receiver makes of messages with chunks, by tensor; raises if anything is missing or wrong."""
    came = layout.allocate()
    receiver = Receiver(layout, came)
    for frame in (frame for message in messages for frame in frames_in(message)):
        chunk = read_chunk(frame)
        assert chunk is not None
        receiver.add(chunk)
    receiver.finish()
    return [layout.raw(came, k).tobytes() for k in range(len(layout.specs))]
