"""A file that grows by lines, read as it grows: each time only what is new."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TAIL = 256
"""Bytes before the end of what was read that are compared, to see whether it is still the same file."""


@dataclass(frozen=True)
class NewLines:
    """What a look at a file has found."""

    lines: list[bytes]
    """Whole lines, without their ends."""
    anew: bool
    """Whether they begin a file that was replaced or cut, so that what was read before does not count."""


class GrowingFile:
    """Remembers how far a file was read. A last line without its end is being written, or was cut off."""

    def __init__(self, path: Path, *, first_bytes: int | None = None) -> None:
        """`first_bytes`: of a file that is there already, so much of its end is read; None: all of it."""
        self.path = path
        self._first_bytes = first_bytes
        self._inode = 0
        self._offset = 0
        self._tail = b""

    def look(self, at_most: int | None = None) -> NewLines:
        """New lines, of so many bytes at the most (but one line at least); none without a file."""
        try:
            with self.path.open("rb") as file:
                return self._read(file.fileno(), at_most)
        except FileNotFoundError:
            gone, self._offset, self._inode, self._tail = bool(self._inode), 0, 0, b""
            return NewLines([], gone)

    @property
    def offset(self) -> int:
        """Bytes that were read, or passed over."""
        return self._offset

    def _read(self, file: int, at_most: int | None) -> NewLines:
        now = os.fstat(file)
        anew = self._inode != now.st_ino or not self._goes_on(file, now.st_size)
        if anew:
            self._inode, self._offset, self._tail = now.st_ino, self._first_offset(file, now.st_size), b""
        size = now.st_size - self._offset
        data = os.pread(file, size if at_most is None else min(size, at_most), self._offset)
        if at_most is not None and len(data) < size and b"\n" not in data:
            data = os.pread(file, size, self._offset)
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        self._tail = (self._tail + data)[-_TAIL:]
        return NewLines(data.split(b"\n")[:-1], anew)

    def _goes_on(self, file: int, size: int) -> bool:
        if size < self._offset:
            return False
        return os.pread(file, len(self._tail), self._offset - len(self._tail)) == self._tail

    def _first_offset(self, file: int, size: int) -> int:
        """Where to begin: at the first whole line of the part that is wanted."""
        if self._first_bytes is None or size <= self._first_bytes:
            return 0
        start = size - self._first_bytes
        data = os.pread(file, self._first_bytes, start)
        return start + data.find(b"\n") + 1
