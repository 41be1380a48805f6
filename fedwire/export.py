"""Tensors out of a capture as safetensors files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.atomic import make_private
from common.errors import DataError
from common.names import is_name
from common.tensors import safetensors_files
from common.tensors.layout import Layout, Purpose
from fedwire.source import Capture
from fedwire.transfers import Transfer, Transfers


@dataclass(frozen=True)
class Written:
    """A file that was written."""

    file: str
    tensors: int
    bytes: int


_FILES = {
    "model": (Purpose.MODEL, Purpose.BUFFER),
    "control": (Purpose.CONTROL,),
    "client-control": (Purpose.CLIENT_CONTROL,),
    "frozen": (Purpose.FROZEN,),
}


def export(
    capture: Capture, out: Path, r: int | None, client: str | None, problem: Callable[[str], None]
) -> list[Written]:
    """Writes OUT/round-RRRRRR/{down,up}/CLIENT/KIND.safetensors, of the kinds above; returns a list."""
    written: list[Written] = []
    found = Transfers(capture)
    for transfer in found:
        if r not in (None, transfer.round) or client not in (None, transfer.client):
            continue
        try:
            written += _write(found, transfer, out)
        except DataError as error:
            problem(str(error))
    return written


def _write(found: Transfers, transfer: Transfer, out: Path) -> list[Written]:
    flat, encoding = found.values(transfer), transfer.encoding
    # A name comes from a peer and becomes a folder here.
    name = transfer.client if is_name(transfer.client) else "unnamed"
    folder = out / f"round-{transfer.round:06d}" / ("up" if transfer.up else "down") / name
    written = []
    for file, purposes in _FILES.items():
        sent = [
            k
            for k in encoding.layout.indices(*purposes)
            if encoding.tensor_encodings[k].codec.name != "derived"
        ]
        if not sent:
            continue
        make_private(folder)
        path = folder / f"{file}.safetensors"
        part = Layout(encoding.layout.specs[k] for k in sent)
        values_of_part = part.allocate()
        for to, k in enumerate(sent):
            part.raw(values_of_part, to)[:] = encoding.layout.raw(flat, k)
        safetensors_files.write(path, part, values_of_part, *purposes)
        written.append(Written(str(path), len(sent), path.stat().st_size))
    return written
