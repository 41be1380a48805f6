"""Flat tensor buffers as safetensors files: replaced atomically, checked when read."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, TensorSpec, deserialize, serialize_file

from common.atomic import replacing
from common.errors import StateError
from common.tensors.layout import Flat, Layout, Purpose

_NAMES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
MAX_HEADER_BYTES = 100 << 20
"""As safetensors itself has it."""


def write(
    path: Path, layout: Layout, flat: Flat, *purposes: Purpose, note: dict[str, str] | None = None
) -> None:
    """Replaces `path` by the tensors of a flat buffer that have one of these purposes, and a note."""
    chosen = layout.indices(*purposes)
    try:
        tensors = {
            layout.specs[index].name: TensorSpec(
                dtype=layout.specs[index].dtype,
                shape=list(layout.specs[index].shape),
                data_ptr=layout.raw(flat, index).ctypes.data,
                data_len=layout.specs[index].num_bytes,
            )
            for index in chosen
        }
    except SafetensorError as error:
        raise StateError(f"{path} cannot be written: {error}") from error
    with replacing(path) as scratch:
        try:
            serialize_file(tensors, scratch, note)
        except SafetensorError as error:
            # What is left that can go wrong is the disk.
            raise OSError(errno.EIO, str(error), str(path)) from error


def read_note(path: Path) -> dict[str, str]:
    """The note in a file; empty if it has none."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            there = min(path.stat().st_size, MAX_HEADER_BYTES)
            header = json.loads(file.read(size)) if size <= there else None
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise StateError(f"{path} is not a safetensors file")
    note = header.get("__metadata__", {})
    return {str(key): str(value) for key, value in note.items()} if isinstance(note, dict) else {}


def read(path: Path, layout: Layout) -> Flat:
    """The tensors of a file as a flat buffer; refuses a file that does not hold exactly this layout."""
    try:
        found = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path} cannot be read: {error}; remove it to start without it") from error
    if found.keys() != {spec.name for spec in layout.specs}:
        raise StateError(f"{path} holds other tensors than this run's; remove it to start without it")
    flat = layout.allocate()
    for index, spec in enumerate(layout.specs):
        entry = found[spec.name]
        if (entry["dtype"], tuple(entry["shape"])) != (_NAMES[spec.dtype], spec.shape):
            raise StateError(
                f"{path}: {spec.name} should be {_NAMES[spec.dtype]} {spec.shape}, "
                f"is {entry['dtype']} {tuple(entry['shape'])}; remove the file to start without it"
            )
        layout.raw(flat, index)[:] = np.frombuffer(entry["data"], np.uint8)
    return flat
