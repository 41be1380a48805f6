"""Updates on disk between their arrival and the end of their round.

An upload is written into a file of its own as it comes and counts only once it is whole and checked, so a
rejected one leaves nothing behind; one whose stream broke waits for the client to go on with it. Keeping
updates in files rather than in memory bounds the server's memory whatever the number of clients, and lets
them be folded in the order of client indices whatever the order of arrival.

    [ y_i, buffers and c_i+: the values | the bytes as they came, where they are coded ]

Where nothing is coded the bytes come to their place among the values at once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from pathlib import Path

import numpy as np

from common.atomic import PRIVATE, make_private
from common.errors import Fault, SupersededError, WireError
from common.tensors.layout import Flat, Layout
from common.wire.chunks import START, Position, Receiver
from common.wire.encoding import Encoding


class Upload(Receiver):
    """One update on its way in, over one stream or, if that breaks, several."""

    def __init__(self, path: Path, encoding: Encoding, layout: Layout, update_id: str) -> None:
        """`layout` is that of the values."""
        super().__init__(encoding.encoded)
        self.update_id = update_id
        self._path = path
        self._stream: asyncio.Event | None = None
        """That of the stream that may go on; set when another takes its place."""
        self._discarded = False
        self._start = 0 if encoding.plain else layout.num_bytes
        self._end = self._start + encoding.encoded.num_bytes
        self._num_bytes = layout.num_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
        # Reserved now: writing to a mapped file on a full disk would kill the process instead of raising.
        os.posix_fallocate(self._file, 0, max(layout.num_bytes, self._end, 1))

    def begin(self) -> asyncio.Event:
        """Starts a stream and ends an earlier one; the event tells it that its own time is over."""
        self._end_stream()
        self._stream = asyncio.Event()
        return self._stream

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.set()

    def require_current(self, stream: asyncio.Event) -> None:
        """Raises for a stream whose update another stream goes on with, or starts again."""
        if stream is not self._stream or stream.is_set() or self._discarded:
            raise SupersededError("another stream of this client goes on with its update")

    def place(self, start: int, data: Flat) -> None:
        """Writes bytes to the file: that is quicker than into a mapping, whose pages come one by one."""
        rest = data.data
        while rest:
            written = os.pwrite(self._file, rest, self._start + start + len(data) - len(rest))
            rest = rest[written:]

    def mapped(self) -> tuple[Flat, Flat]:
        """The bytes as they came, and room for y_i, buffers and c_i+; raises unless every byte has come."""
        self.finish()
        mapped: Flat = np.memmap(self._path, np.uint8, "r+")
        return mapped[self._start : self._end], mapped[: self._num_bytes]

    def keep(self, path: Path) -> None:
        """Gives the finished update its place in the round."""
        self._close()
        make_private(path.parent)
        self._path.replace(path)

    def discard(self) -> None:
        """Removes what was not kept, and ends a stream that is still alive."""
        self._discarded = True
        self._end_stream()
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Spool:
    """The folder of updates of a run."""

    def __init__(self, folder: Path, encoding: Encoding, layout: Layout) -> None:
        self._folder = folder
        self._encoding = encoding
        self._layout = layout
        self._numbers = itertools.count()
        self._parts: dict[int, Upload] = {}
        """Uploads that are not whole yet, by client index."""
        make_private(folder)

    def part(self, i: int, update_id: str) -> Upload | None:
        """What has come so far of this update of client i."""
        part = self._parts.get(i)
        return part if part is not None and part.update_id == update_id else None

    def upload(self, i: int, update_id: str, start: Position) -> Upload:
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
        path = self._folder / f"upload-{next(self._numbers)}.part"
        self._parts[i] = Upload(path, self._encoding, self._layout, update_id)
        return self._parts[i]

    def keep(self, i: int, r: int, upload: Upload) -> None:
        """Counts an upload of client i as whole."""
        assert self._parts[i] is upload, "a stream that may go on has the upload that is there"
        self._parts.pop(i).keep(self.path(r, i))

    def drop(self, i: int, upload: Upload | None = None) -> None:
        """Forgets the upload of client i; only if it is this one, where one is given."""
        if i in self._parts and upload in (None, self._parts[i]):
            self._parts.pop(i).discard()

    def path(self, r: int, i: int) -> Path:
        """Where the update of client i for round r is kept: a file that opens with the tensors of y_i."""
        return self._folder / f"round-{r:06d}" / f"client-{i:05d}.update"

    def values(self, r: int, i: int, *, writable: bool = False) -> Flat:
        """y_i, buffers and c_i+ of a kept update, mapped rather than loaded."""
        mapped: Flat = np.memmap(self.path(r, i), np.uint8, "r+" if writable else "r")
        return mapped[: self._layout.num_bytes]

    def put_aside(self, r: int, i: int, c_i: Flat) -> Flat:
        """The c_i from before an update, mapped rather than held in memory."""
        path = self.path(r, i).with_suffix(".before")
        path.touch(PRIVATE)
        c_i.tofile(path)
        mapped: Flat = np.memmap(path, np.uint8, "r")
        return mapped

    def drop_parts(self) -> None:
        """Removes what is left of broken uploads."""
        for i in list(self._parts):
            self.drop(i)

    def drop_round(self, r: int) -> None:
        """Removes all updates of a round."""
        shutil.rmtree(self._folder / f"round-{r:06d}", ignore_errors=True)
