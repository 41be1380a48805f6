"""One message in full: its fields, and its tensors with what their numbers look like."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from common.errors import DataError
from common.tensors.layout import DTYPES, Array, Flat, to_float64
from common.wire.calls import CALLS
from common.wire.chunks import read_chunk
from common.wire.encoding import Encoding
from fedwire.source import Capture, CapturedMessage
from fedwire.transfers import Transfer, Transfers


def inspect(capture: Capture, number: int) -> dict[str, Any]:
    """Everything about one message; that of a header includes the tensors that follow it."""
    message = next((m for m in capture.messages if m.number == number), None)
    if message is None:
        raise DataError(f"this run has {_numbers(capture)} in the capture, got {number}")
    described: dict[str, Any] = asdict(message.row())
    if message.content.kind == "chunk":
        return described | {"chunk": _chunk(capture, message)}
    described["fields"] = _fields(capture, message)
    if message.content.kind == "header":
        found = Transfers(capture)
        mine = next((t for t in found if message in t.headers), None)
        if mine is not None:
            described["tensors"] = _tensors(found, mine)
    return described


def _numbers(capture: Capture) -> str:
    """Those of a run need not begin at 0: the messages of all runs in a file are numbered in one go."""
    if not capture.messages:
        return "no message"
    return f"messages {capture.messages[0].number} to {capture.messages[-1].number}"


def _fields(capture: Capture, message: CapturedMessage) -> dict[str, Any]:
    call = CALLS.get(message.rpc)
    if call is None:
        return {}
    kind = call.request if message.up else call.reply
    try:
        parsed = kind.FromString(capture.data(message))
    except DecodeError as error:
        raise DataError(f"message {message.number} is no {kind.DESCRIPTOR.name}: {error}") from error
    fields: dict[str, Any] = MessageToDict(parsed, preserving_proto_field_name=True)
    inner: dict[str, Any] = fields.get("header", fields)
    inner.pop("tensors", None)
    return inner


def _chunk(capture: Capture, message: CapturedMessage) -> dict[str, Any]:
    chunk = read_chunk(capture.data(message))
    assert chunk is not None, "its kind says so"
    mine = next((t for t in Transfers(capture) if message in t.chunks), None)
    described: dict[str, Any] = {
        "offset": chunk.offset,
        "bytes": len(chunk.data),
        "crc32c": f"{chunk.crc32c:08x}",
    }
    if mine is None or chunk.tensor >= len(mine.encoding.layout.specs):
        return described
    spec, tensor_encoding = (
        mine.encoding.layout.specs[chunk.tensor],
        mine.encoding.tensor_encodings[chunk.tensor],
    )
    described |= {
        "tensor": spec.name,
        "shape": spec.shape,
        "dtype": spec.dtype,
        "codec": tensor_encoding.codec.name,
    }
    storage = DTYPES[spec.dtype].storage
    if (
        not tensor_encoding.codec.lossy
        and chunk.offset % storage.itemsize == 0
        and len(chunk.data) % storage.itemsize == 0
    ):
        described |= numbers(chunk.data.view(storage), spec.dtype)
    return described


def _tensors(found: Transfers, mine: Transfer) -> list[dict[str, Any]]:
    encoding = mine.encoding
    try:
        flat = found.values(mine)
    except DataError as error:
        return [
            _tensor(encoding, k, None) | {"problem": str(error)}
            for k in range(len(encoding.tensor_encodings))
        ]
    return [_tensor(encoding, k, flat) for k in range(len(encoding.tensor_encodings))]


def _tensor(encoding: Encoding, k: int, flat: Flat | None) -> dict[str, Any]:
    spec, tensor_encoding = encoding.layout.specs[k], encoding.tensor_encodings[k]
    described: dict[str, Any] = {
        "name": spec.name,
        "purpose": spec.purpose.name.lower(),
        "dtype": spec.dtype,
        "shape": spec.shape,
        "codec": tensor_encoding.codec.name
        + (" of the difference to x" if tensor_encoding.difference else ""),
        "bytes": encoding.encoded.specs[k].num_bytes,
    }
    if flat is not None and encoding.encoded.specs[k].num_bytes:
        described |= numbers(encoding.layout.array(flat, k).reshape(-1), spec.dtype)
    return described


def numbers(elements: Array, dtype: str) -> dict[str, Any]:
    """Norm, range, NaN count and share of zeros of some elements."""
    if not len(elements) or not DTYPES[dtype].averages:
        return {}
    wide = to_float64(elements, dtype)
    finite = wide[np.isfinite(wide)]
    with np.errstate(over="ignore"):
        norm = float(np.sqrt(np.square(finite).sum()))
    return {
        "norm": norm,
        "min": float(finite.min()) if len(finite) else None,
        "max": float(finite.max()) if len(finite) else None,
        "nan": int(np.isnan(wide).sum()),
        "zeros": float((wide == 0).mean()),
    }
