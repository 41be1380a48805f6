"""Where the bytes of an update are between their arrival and the end of its round: in a file or in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import numpy as np

from common.atomic import PRIVATE, make_private, write_at
from common.tensors.layout import Flat

SMALL_BYTES = 64 << 10
"""An update of this size may stay in memory."""
MEMORY_BYTES = 16 << 20
"""What updates take of it at the most, all clients together."""


class Room(Protocol):
    """Where the bytes of one update are."""

    def write(self, start: int, data: Flat) -> None:
        """Puts bytes into their place."""

    def flat(self) -> Flat:
        """All of it, writable."""

    def keep(self, path: Path) -> None:
        """The update is whole: `path` is where it would be looked for."""

    def close(self) -> None:
        """It is not needed any more."""


class FileRoom:
    """In a file of its own, which is in the way of nobody until it is kept."""

    def __init__(self, path: Path, num_bytes: int, spare: Path | None = None) -> None:
        """`spare` is a file that nobody needs any more: it is written over, and grows if it is too small."""
        self._path = path
        if spare is not None:
            spare.replace(path)
            self._file = os.open(path, os.O_RDWR)
            if os.fstat(self._file).st_size >= num_bytes:
                return
        else:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
        # Reserved now: writing to a mapped file on a full disk would kill the process instead of raising.
        os.posix_fallocate(self._file, 0, max(num_bytes, 1))

    def write(self, start: int, data: Flat) -> None:
        """Writes bytes to the file: that is quicker than into a mapping, whose pages come one by one."""
        write_at(self._file, data.data, start)

    def flat(self) -> Flat:
        """The file, mapped rather than loaded."""
        mapped: Flat = np.memmap(self._path, np.uint8, "r+")
        return mapped

    def keep(self, path: Path) -> None:
        """Gives the file its place in the round."""
        self._let_go()
        make_private(path.parent)
        self._path.replace(path)

    def close(self) -> None:
        """Removes the file."""
        self._let_go()
        self._path.unlink(missing_ok=True)

    def _let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class MemoryRooms:
    """Updates that are small, by where they would be looked for on disk once they are whole."""

    def __init__(self) -> None:
        self._kept: dict[Path, Flat] = {}
        self._taken = 0

    def room(self, num_bytes: int) -> MemoryRoom | None:
        """A new one, if there is any left."""
        if num_bytes > SMALL_BYTES or self._taken + num_bytes > MEMORY_BYTES:
            return None
        self._taken += num_bytes
        return MemoryRoom(self, np.zeros(num_bytes, np.uint8))

    def adopted(self, flat: Flat) -> MemoryRoom:
        """One that somebody else has memory for, and bounds."""
        self._taken += len(flat)
        return MemoryRoom(self, flat)

    def keep(self, path: Path, flat: Flat) -> None:
        """An update that is whole."""
        self._kept[path] = flat

    def kept(self, path: Path) -> Flat | None:
        """The update that would be here."""
        return self._kept.get(path)

    def drop(self, folder: Path) -> None:
        """Forgets all that would be in a folder."""
        for path in [path for path in self._kept if path.parent == folder]:
            self.give_back(self._kept.pop(path))

    def give_back(self, flat: Flat) -> None:
        """There is more room for others."""
        self._taken -= len(flat)


class MemoryRoom:
    """In memory."""

    def __init__(self, rooms: MemoryRooms, flat: Flat) -> None:
        self._rooms = rooms
        self._flat: Flat | None = flat

    def write(self, start: int, data: Flat) -> None:
        """Copies bytes."""
        self.flat()[start : start + len(data)] = data

    def flat(self) -> Flat:
        """The same bytes at each call."""
        assert self._flat is not None, "nobody asks for an update that was given up or kept"
        return self._flat

    def keep(self, path: Path) -> None:
        """Moves it to those that are whole."""
        self._rooms.keep(path, self.flat())
        self._flat = None

    def close(self) -> None:
        """Forgets it."""
        if self._flat is not None:
            self._rooms.give_back(self._flat)
            self._flat = None
