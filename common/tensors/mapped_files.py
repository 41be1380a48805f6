"""Flat buffers in mapped files, read part by part."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import numpy as np

from common.errors import StateError
from common.tensors.layout import DTYPES, Array, Flat, Layout

Read = Callable[[slice, Flat], Array]
"""Gives these elements of a tensor; the room is for those that have to be read first."""


class Stored:
    """A flat buffer, in memory or in a mapped file that is still where it was mapped.

    Parts of a file are read into memory of the caller's. To touch them where they are mapped takes longer:
    pages come a few at a time, and have to be let go of again, of which every core has to hear.
    """

    def __init__(self, flat: Flat) -> None:
        self._flat = flat
        self._file: int | None = None
        self._start = 0
        if isinstance(flat, np.memmap) and flat.mode in ("r", "r+") and hasattr(os, "preadv"):
            assert flat.filename is not None, "it is mapped by name"
            with suppress(OSError):  # It is mapped all the same.
                self._file = os.open(flat.filename, os.O_RDONLY)
            self._start = _offset_in_file(flat)

    def __enter__(self) -> Stored:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)

    def reading(self, layout: Layout, index: int) -> Read:
        """How the elements of one tensor are read, in a row."""
        storage, first = DTYPES[layout.specs[index].dtype].storage, layout.offsets[index]

        def read(elements: slice, room: Flat) -> Array:
            start, end = (first + at * storage.itemsize for at in (elements.start, elements.stop))
            if self._file is None:
                return self._flat[start:end].view(storage)
            found = room[: end - start]
            _fill(found, self._file, self._start + start)
            return found.view(storage)

        return read


def _offset_in_file(flat: Flat) -> int:
    whole = flat
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    assert isinstance(whole, np.memmap), "a view of a mapped file is one itself"
    return int(flat.ctypes.data - whole.ctypes.data) + int(whole.offset)


def _fill(room: Flat, file: int, start: int) -> None:
    rest = memoryview(room.data)
    while rest:
        came = os.preadv(file, [rest], start)
        if not came:
            raise StateError("a file of an update is shorter than it was; start the server again")
        rest, start = rest[came:], start + came
