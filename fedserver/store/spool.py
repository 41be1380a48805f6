"""Updates on disk between their arrival and the end of their round.

An upload is written into a file of its own as it comes and counts only once it is whole and checked, so a
rejected one leaves nothing behind; one whose stream broke waits for the client to go on with it. Keeping
updates in files rather than in memory bounds the server's memory whatever the number of clients, and lets
them be folded in the order of client indices whatever the order of arrival.

    [ y_i, buffers and c_i+: the values | the bytes as they came, where they are coded ]

Where nothing is coded the bytes come to their place among the values at once. Small updates stay in memory,
as long as all of them together are small: making and removing a file takes longer than folding one. Files of
a round that is over are written over by the updates of the next: their pages and blocks are there already.
"""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np

from common.atomic import PRIVATE, make_private
from common.errors import Fault, SupersededError, WireError
from common.tensors.layout import DTYPES, Flat, Layout, Purpose, all_finite
from common.wire.chunks import START, Chunk, Position
from common.wire.encoding import Encoding
from common.wire.receiver import Receiver
from fedserver.store.room import FileRoom, MemoryRooms, Room
from fedserver.store.stream import Stream

UPDATE = ".update"
"""Ends the name of an update that is whole."""


def start_of_bytes(encoding: Encoding, layout: Layout) -> int:
    """Where the bytes of an update begin as they come."""
    return 0 if encoding.plain else layout.num_bytes


class Upload(Receiver):
    """One update on its way in, over one stream or, if that breaks, several."""

    def __init__(self, room: Room, encoding: Encoding, layout: Layout, update_id: str) -> None:
        """`layout` is that of the values."""
        super().__init__(encoding.encoded)
        self.update_id = update_id
        self._room = room
        self._stream: Stream | None = None
        """The one that may go on."""
        self._discarded = False
        self._start = start_of_bytes(encoding, layout)
        self._num_bytes = layout.num_bytes
        self._finite = encoding.plain
        """Whether every number that has come is known to be finite."""

    def begin(self) -> Stream:
        """Starts a stream and ends an earlier one."""
        self._end_stream()
        self._stream = Stream()
        return self._stream

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.end()

    def require_current(self, stream: Stream) -> None:
        """Raises for a stream whose update another stream goes on with, or starts again."""
        if stream is not self._stream or stream.ended or self._discarded:
            raise SupersededError("another stream of this client goes on with its update")

    def add(self, chunk: Chunk) -> None:
        """Looks whether numbers are finite while they are in the cache: later it would take longer."""
        super().add(chunk)
        self._finite = self._finite and _finite(chunk.data, self._layout.specs[chunk.tensor].dtype)

    @property
    def seen(self) -> tuple[Purpose, ...]:
        """What is known to be finite."""
        return tuple(Purpose) if self._finite else ()

    def place(self, start: int, data: Flat) -> None:
        """Puts bytes behind the values, or among them where nothing is coded."""
        self._room.write(self._start + start, data)

    def mapped(self) -> tuple[Flat, Flat]:
        """The bytes as they came, and room for y_i, buffers and c_i+; raises unless every byte has come."""
        self.finish()
        flat, end = self._room.flat(), self._start + self._layout.num_bytes
        return flat[self._start : end], flat[: self._num_bytes]

    def put(self, payload: Flat | None) -> None:
        """Takes all bytes at once, from a client in this process; None: they are in their place."""
        if payload is not None:
            self.place(0, payload)
        self._tensor, self._filled = len(self._layout.specs), 0

    def keep(self, path: Path) -> None:
        """Gives the finished update its place in the round."""
        self._room.keep(path)

    def discard(self) -> None:
        """Removes what was not kept, and ends a stream that is still alive."""
        self._discarded = True
        self._end_stream()
        self._room.close()


def _finite(data: Flat, dtype: str) -> bool:
    """Whether these bytes are known to be finite numbers."""
    storage = DTYPES[dtype].storage
    return not len(data) % storage.itemsize and all_finite(data.view(storage), dtype)


class Spool:
    """The folder of updates of a run."""

    def __init__(self, folder: Path, encoding: Encoding, layout: Layout, *, in_files: bool = False) -> None:
        """`in_files`: others look at the updates too, so that none is in memory only."""
        self._folder = folder
        self.lay_out(encoding, layout)
        self._memory = None if in_files else MemoryRooms()
        self._numbers = itertools.count()
        self._parts: dict[int, Upload] = {}
        """Uploads that are not whole yet, by client index."""
        self._spare: list[Path] = []
        """Files of rounds that are over."""
        make_private(folder)

    def lay_out(self, encoding: Encoding, layout: Layout) -> None:
        """From now on updates are of this layout."""
        self._encoding = encoding
        self._layout = layout
        self._room_bytes = max(
            layout.num_bytes, start_of_bytes(encoding, layout) + encoding.encoded.num_bytes
        )

    def part(self, i: int, update_id: str) -> Upload | None:
        """What has come so far of this update of client i."""
        part = self._parts.get(i)
        return part if part is not None and part.update_id == update_id else None

    def upload(self, i: int, update_id: str, start: Position, encoding: Encoding) -> Upload:
        """Room for an update whose manifest has been checked, or what has come of it so far."""
        part = self.part(i, update_id)
        if start != START:
            if part is None or part.position != start:
                at = part.position if part is not None else START
                raise WireError(
                    Fault.WRONG_OFFSET, f"goes on at {start}, but expected {at}; ask UpdateProgress"
                )
            return part
        self.drop(i)
        self._parts[i] = Upload(self._room(), encoding, self._values(encoding), update_id)
        return self._parts[i]

    def _values(self, encoding: Encoding) -> Layout:
        """What an update becomes: all tensors of a round or, if it is one that is apart, its own alone."""
        return self._layout if encoding.layout.specs == self._encoding.layout.specs else encoding.layout

    def handed(
        self, i: int, update_id: str, payload: Flat, memory: Flat | None, encoding: Encoding
    ) -> Upload:
        """An update whose bytes are all here, from a client in this process.

        It stays in `memory`, where there is any: as large as a room, and opening with the payload if nothing
        is coded. Else it is written to where any other would be.
        """
        self.drop(i)
        kept = self._memory if memory is not None else None
        room = kept.adopted(memory) if kept is not None and memory is not None else self._room()
        self._parts[i] = Upload(room, encoding, self._values(encoding), update_id)
        self._parts[i].put(None if kept is not None and encoding.plain else payload)
        return self._parts[i]

    def _room(self) -> Room:
        in_memory = self._memory.room(self._room_bytes) if self._memory is not None else None
        if in_memory is not None:
            return in_memory
        spare = self._spare.pop() if self._spare else None
        return FileRoom(self._folder / f"upload-{next(self._numbers)}.part", self._room_bytes, spare)

    def keep(self, i: int, r: int, upload: Upload) -> None:
        """Counts an upload of client i as whole."""
        assert self._parts[i] is upload, "a stream that may go on has the upload that is there"
        self._parts.pop(i).keep(self.path(r, i))

    def drop(self, i: int, upload: Upload | None = None) -> None:
        """Forgets the upload of client i; only if it is this one, where one is given."""
        if i in self._parts and upload in (None, self._parts[i]):
            self._parts.pop(i).discard()

    def path(self, r: int, i: int) -> Path:
        """Where the update of client i for round r is kept: a file, or its name, that opens with y_i."""
        return self._folder / f"round-{r:06d}" / f"client-{i:05d}{UPDATE}"

    def values(self, r: int, i: int, *, writable: bool = False) -> Flat:
        """y_i, buffers and c_i+ of a kept update; a file is mapped rather than loaded."""
        path = self.path(r, i)
        found = self._memory.kept(path) if self._memory is not None else None
        if found is None:
            found = np.memmap(path, np.uint8, "r+" if writable else "r")
        return found[: self._layout.num_bytes]

    def put_aside(self, r: int, i: int, c_i: Flat) -> Flat:
        """The c_i from before an update, mapped rather than held in memory."""
        path = self.path(r, i).with_suffix(".before")
        make_private(path.parent)
        path.touch(PRIVATE)
        c_i.tofile(path)
        mapped: Flat = np.memmap(path, np.uint8, "r")
        return mapped

    def drop_parts(self) -> None:
        """Removes what is left of broken uploads."""
        for i in list(self._parts):
            self.drop(i)

    def drop_round(self, r: int) -> None:
        """Removes all updates of a round, which nobody reads any more; their files are used again."""
        folder = self._folder / f"round-{r:06d}"
        if self._memory is not None:
            self._memory.drop(folder)
        if not folder.exists():
            return
        for path in folder.glob(f"*{UPDATE}"):
            spare = self._folder / f"spare-{next(self._numbers)}.part"
            with suppress(OSError):  # Whoever has taken it away has saved us the trouble.
                path.replace(spare)
                self._spare.append(spare)
        shutil.rmtree(folder, ignore_errors=True)

    def drop_spares(self) -> None:
        """Removes files that would be used again: there are no more rounds."""
        while self._spare:
            self._spare.pop().unlink(missing_ok=True)
