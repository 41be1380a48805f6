"""Updates on disk between their arrival and the end of their round.

An upload is written into a file of its own as it comes and counts only once it is whole and checked, so a
broken or rejected one leaves nothing behind. Keeping updates in files rather than in memory bounds the
server's memory whatever the number of clients, and lets them be folded in the order of client indices
whatever the order of arrival.
"""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import numpy as np

from common.errors import Fault, WireError
from common.tensors import Flat, Layout, all_finite
from common.wire import Receiver
from fedserver.aggregate import BLOCK


class Upload:
    """One update on its way in."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path = path
        self._layout = layout
        with path.open("wb") as file:
            # Reserved now: writing to a mapped file on a full disk would kill the process instead of raising.
            os.posix_fallocate(file.fileno(), 0, layout.num_bytes)
        self._flat: Flat = np.memmap(path, np.uint8, "r+")
        self.receiver = Receiver(layout, self._flat)

    def check_complete(self) -> None:
        """Raises unless every byte has come and every number is finite."""
        self.receiver.finish()
        for index, spec in enumerate(self._layout.specs):
            values = self._layout.array(self._flat, index).reshape(-1)
            for start in range(0, len(values), BLOCK):
                if not all_finite(values[start : start + BLOCK], spec.dtype):
                    raise WireError(Fault.NOT_FINITE, "holds NaN or infinity; lower --eta-l?", spec.name)

    def keep(self, path: Path) -> None:
        """Gives the finished update its place in the round."""
        path.parent.mkdir(exist_ok=True)
        self._path.replace(path)

    def discard(self) -> None:
        """Removes what was not kept."""
        self._path.unlink(missing_ok=True)


class Spool:
    """The folder of updates of a run."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._layout = layout
        self._numbers = itertools.count()
        folder.mkdir()

    def begin(self) -> Upload:
        """Room for an update whose manifest has been checked."""
        return Upload(self._folder / f"upload-{next(self._numbers)}.part", self._layout)

    def path(self, r: int, i: int) -> Path:
        """Where the update of client i for round r is kept."""
        return self._folder / f"round-{r:06d}" / f"client-{i:05d}.update"

    def read(self, r: int, i: int) -> Flat:
        """A kept update, mapped rather than loaded."""
        mapped: Flat = np.memmap(self.path(r, i), np.uint8, "r")
        return mapped

    def drop_round(self, r: int) -> None:
        """Removes all updates of a round."""
        shutil.rmtree(self._folder / f"round-{r:06d}", ignore_errors=True)
