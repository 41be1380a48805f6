"""Flat tensor buffers as safetensors files: private, replaced atomically, checked when read.

Metadata has, under `crc32c`, a checksum over the rest of the metadata and over the bytes of all tensors in
the order of their names. A file without it is of a release that wrote none, and is taken as it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from safetensors import SafetensorError, deserialize

from common.atomic import PRIVATE, replacing, write_at
from common.errors import StateError
from common.tensors.layout import DTYPES, Array, Flat, Layout, Purpose, TensorSpec

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
_ORDER = (
    *("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64"),
    *("F64", "I64", "U64"),
)
"""Of types, the last one first in a file."""
MAX_HEADER_BYTES = 100 << 20
"""As safetensors itself has it."""
_CHECKSUM = "crc32c"
SUMMED_BYTES = 4 << 20
"""Of a checksum in one go: meanwhile the interpreter is taken, and no other thread of the process gets on."""


def write(
    path: Path,
    layout: Layout,
    flat: Flat,
    *purposes: Purpose,
    note: dict[str, str] | None = None,
    synced: bool = True,
    along: tuple[Layout, Flat] | None = None,
    spare: Path | None = None,
) -> None:
    """Replaces `path` by the tensors of a flat buffer that have one of these purposes, and a note.

    `along` are tensors of another buffer for the same file, all of them. `spare` is a file that nobody needs:
    written over, it has blocks and pages already, and takes a third of the time of a new one.
    """
    chosen = [(layout.specs[k], layout.raw(flat, k)) for k in layout.indices(*purposes)]
    if along is not None:
        chosen += [(spec, along[0].raw(along[1], k)) for k, spec in enumerate(along[0].specs)]
    raw = {spec.name: values for spec, values in chosen}
    told = note or {}
    metadata = told | {_CHECKSUM: _checksum(told, raw)} if raw else told
    try:
        ordered = sorted({spec.name: spec for spec, _ in chosen}.values(), key=_place)
    except KeyError as error:
        raise StateError(f"{path} cannot be written: the format has no {error.args[0]}") from error
    header = _header(ordered, metadata)
    try:
        with replacing(path, PRIVATE, synced=synced, spare=spare) as scratch, scratch.open("r+b") as file:
            end = write_at(file.fileno(), header, 0)
            for spec in ordered:
                end = write_at(file.fileno(), raw[spec.name].data, end)
            file.truncate(end)
    except OSError as error:
        # Whoever gave the path knows nothing of the scratch file, and a full disk names none.
        raise OSError(error.errno, error.strerror, str(path)) from error


def drop_scratch(folder: Path) -> None:
    """Removes files that a killed process has not finished, from a folder into which nobody writes now."""
    for scratch in folder.glob(".*.safetensors.*.tmp"):
        scratch.unlink(missing_ok=True)


def _place(spec: TensorSpec) -> tuple[int, str]:
    """As the library orders them: large elements first, so that each lies at a multiple of its size."""
    return -_ORDER.index(_NAMES[spec.dtype]), spec.name


def _header(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """What opens a file: its own length, then JSON that says where each tensor lies, padded with blanks."""
    entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for spec in specs:
        place = [end, end := end + spec.num_bytes]
        entries[spec.name] = {"dtype": _NAMES[spec.dtype], "shape": spec.shape, "data_offsets": place}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _checksum(note: Mapping[str, str], tensors: Mapping[str, Flat]) -> str:
    text = json.dumps(sorted((key, value) for key, value in note.items() if key != _CHECKSUM))
    found = google_crc32c.value(text.encode())
    for name in sorted(tensors):
        for start in range(0, len(tensors[name]), SUMMED_BYTES):
            piece = tensors[name][start : start + SUMMED_BYTES]
            found = google_crc32c.extend(found, piece)
            if len(piece) == SUMMED_BYTES:
                time.sleep(0)  # Lets whoever waits for the interpreter have it.
    return f"{found:08x}"


def read_note(path: Path) -> dict[str, str]:
    """The note in a file; empty if it has none. Only `read` and `require_whole` check it."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            there = min(path.stat().st_size, MAX_HEADER_BYTES)
            header = file.read(size) if size <= there else b"null"
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    return _note(path, header)


def _note(path: Path | str, header: bytes) -> dict[str, str]:
    try:
        found = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise StateError(f"{path} is not a safetensors file")
    note = found.get("__metadata__", {})
    return {str(key): str(value) for key, value in note.items()} if isinstance(note, dict) else {}


def require_whole(path: Path) -> None:
    """Raises for a file that is damaged, whatever tensors it holds."""
    _checked(path)


def read(path: Path, layout: Layout, *, others: bool = False) -> Flat:
    """The tensors of a file as a flat buffer; refuses one that is damaged or has not exactly this layout.

    `others`: it may have more tensors.
    """
    found = _checked(path)
    names = {spec.name for spec in layout.specs}
    if not names <= found.keys() or (found.keys() != names and not others):
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


def tensors_in(data: bytes, path: str) -> tuple[dict[str, tuple[str, Array]], dict[str, str]]:
    """Types and elements of all tensors in a file of anybody's, by name, and its note."""
    try:
        found = dict(deserialize(data))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise StateError(f"{path} is not a safetensors file: {error}") from error
    note = _require_unchanged(path, data, found)
    types = {short: name for name, short in _NAMES.items()}
    tensors = {}
    for name, entry in found.items():
        if entry["dtype"] not in types:
            raise StateError(f"{path}: {name} is {entry['dtype']}, which is not known here")
        dtype = types[entry["dtype"]]
        elements = np.frombuffer(entry["data"], DTYPES[dtype].storage)
        tensors[name] = dtype, elements.reshape(tuple(entry["shape"]))
    return tensors, note


def _checked(path: Path) -> dict[str, dict[str, Any]]:
    """The tensors of a file by name, as safetensors gives them, if they are as they were written."""
    try:
        data = path.read_bytes()
        found = dict(deserialize(data))  # type: ignore[no-untyped-call]
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path} cannot be read: {error}; remove it to start without it") from error
    _require_unchanged(path, data, found)
    return found


def _require_unchanged(
    path: Path | str, data: bytes, found: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """The note of a file whose checksum, where it has one, is right."""
    note = _note(path, data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = {name: np.frombuffer(entry["data"], np.uint8) for name, entry in found.items()}
    if _CHECKSUM in note and note[_CHECKSUM] != _checksum(note, tensors):
        raise StateError(f"{path} is damaged: its checksum is wrong")
    return note
