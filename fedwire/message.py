"""One message in full: its fields, and its tensors with what their numbers look like."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from common.errors import DataError
from common.tensors.layout import DTYPES, Array, Flat, to_float64
from common.wire.calls import CALLS
from common.wire.chunks import read_chunk
from common.wire.encoding import Encoding
from fedwire.source import Capture, CapturedMessage, MessageRow
from fedwire.transfers import Transfer, Transfers

Fields = dict[str, object]
"""Of a message, by name, as protobuf's JSON has them."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What some elements look like."""

    norm: float
    min: float | None
    max: float | None
    nan: int
    zeros: float
    """Their share."""


@dataclass(frozen=True, kw_only=True)
class ShownTensor:
    """A tensor that a header announces."""

    name: str
    purpose: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    bytes: int
    numbers: Numbers | None
    """None where nothing of it was sent, or not all of it is in the capture."""
    problem: str = ""

    def as_json(self) -> Fields:
        """Plain values; numbers stand beside the rest."""
        return _flat(self, "numbers") | ({"problem": self.problem} if self.problem else {})


@dataclass(frozen=True, kw_only=True)
class ChunkPlace:
    """The tensor of which a chunk is a part."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    codec: str
    numbers: Numbers | None
    """Of the part; None where its bytes are no plain elements."""


@dataclass(frozen=True, kw_only=True)
class ShownChunk:
    """A slice of a tensor."""

    offset: int
    bytes: int
    crc32c: str
    place: ChunkPlace | None
    """None where no header in the capture announces it."""

    def as_json(self) -> Fields:
        """Plain values; what is known of the tensor stands beside the rest."""
        known = _flat(self.place, "numbers") if self.place is not None else {}
        return {"offset": self.offset, "bytes": self.bytes, "crc32c": self.crc32c} | known


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Everything about one message."""

    row: MessageRow
    fields: Fields | None = None
    """Those of a chunk are the chunk."""
    chunk: ShownChunk | None = None
    tensors: tuple[ShownTensor, ...] | None = None
    """Those that follow a header."""

    def as_json(self) -> Fields:
        """Plain values, without what the message has not."""
        found: Fields = asdict(self.row)
        if self.chunk is not None:
            found["chunk"] = self.chunk.as_json()
        if self.fields is not None:
            found["fields"] = self.fields
        if self.tensors is not None:
            found["tensors"] = [tensor.as_json() for tensor in self.tensors]
        return found


def _flat(shown: ShownTensor | ChunkPlace, inner: str) -> Fields:
    values: Fields = {name: value for name, value in vars(shown).items() if name not in (inner, "problem")}
    return values | (asdict(shown.numbers) if shown.numbers is not None else {})


def inspect(capture: Capture, number: int) -> Shown:
    """Everything about one message; that of a header includes the tensors that follow it."""
    message = next((m for m in capture.messages if m.number == number), None)
    if message is None:
        raise DataError(f"this run has {_numbers(capture)} in the capture, got {number}")
    row = message.row()
    if message.content.kind == "chunk":
        return Shown(row=row, chunk=_chunk(capture, message))
    fields = _fields(capture, message)
    if message.content.kind != "header":
        return Shown(row=row, fields=fields)
    found = Transfers(capture)
    mine = next((t for t in found if message in t.headers), None)
    return Shown(row=row, fields=fields, tensors=None if mine is None else _tensors(found, mine))


def _numbers(capture: Capture) -> str:
    """Those of a run need not begin at 0: the messages of all runs in a file are numbered in one go."""
    if not capture.messages:
        return "no message"
    return f"messages {capture.messages[0].number} to {capture.messages[-1].number}"


def _fields(capture: Capture, message: CapturedMessage) -> Fields:
    call = CALLS.get(message.rpc)
    if call is None:
        return {}
    kind = call.request if message.up else call.reply
    try:
        parsed = kind.FromString(capture.data(message))
    except DecodeError as error:
        raise DataError(f"message {message.number} is no {kind.DESCRIPTOR.name}: {error}") from error
    fields = MessageToDict(parsed, preserving_proto_field_name=True)
    inner: Fields = fields.get("header", fields)
    inner.pop("tensors", None)
    return inner


def _chunk(capture: Capture, message: CapturedMessage) -> ShownChunk:
    chunk = read_chunk(capture.data(message))
    assert chunk is not None, "its kind says so"
    mine = next((t for t in Transfers(capture) if message in t.chunks), None)
    place = None
    if mine is not None and chunk.tensor < len(mine.encoding.layout.specs):
        spec = mine.encoding.layout.specs[chunk.tensor]
        codec, storage = mine.encoding.tensor_encodings[chunk.tensor].codec, DTYPES[spec.dtype].storage
        whole = chunk.offset % storage.itemsize == 0 and len(chunk.data) % storage.itemsize == 0
        plain = whole and not codec.lossy
        place = ChunkPlace(
            tensor=spec.name,
            shape=spec.shape,
            dtype=spec.dtype,
            codec=codec.name,
            numbers=numbers(chunk.data.view(storage), spec.dtype) if plain else None,
        )
    return ShownChunk(offset=chunk.offset, bytes=len(chunk.data), crc32c=f"{chunk.crc32c:08x}", place=place)


def _tensors(found: Transfers, mine: Transfer) -> tuple[ShownTensor, ...]:
    encoding, flat, problem = mine.encoding, None, ""
    try:
        flat = found.values(mine)
    except DataError as error:
        problem = str(error)
    return tuple(_tensor(encoding, k, flat, problem) for k in range(len(encoding.tensor_encodings)))


def _tensor(encoding: Encoding, k: int, flat: Flat | None, problem: str) -> ShownTensor:
    spec, tensor_encoding = encoding.layout.specs[k], encoding.tensor_encodings[k]
    num_bytes = encoding.encoded.specs[k].num_bytes
    known = None
    if flat is not None and num_bytes:
        known = numbers(encoding.layout.array(flat, k).reshape(-1), spec.dtype)
    return ShownTensor(
        name=spec.name,
        purpose=spec.purpose.name.lower(),
        dtype=spec.dtype,
        shape=spec.shape,
        codec=tensor_encoding.codec.name + (" of the difference to x" if tensor_encoding.difference else ""),
        bytes=num_bytes,
        numbers=known,
        problem=problem,
    )


def numbers(elements: Array, dtype: str) -> Numbers | None:
    """Norm, range, NaN count and share of zeros of some elements; None for those that are no measures."""
    if not len(elements) or not DTYPES[dtype].averages:
        return None
    wide = to_float64(elements, dtype)
    finite = wide[np.isfinite(wide)]
    with np.errstate(over="ignore"):
        norm = float(np.sqrt(np.square(finite).sum()))
    return Numbers(
        norm=norm,
        min=float(finite.min()) if len(finite) else None,
        max=float(finite.max()) if len(finite) else None,
        nan=int(np.isnan(wide).sum()),
        zeros=float((wide == 0).mean()),
    )
