"""Every client's c_i as last counted, one file each.

c moves by the differences between a client's new c_i and the one counted before; the server keeps the latter
itself, so that a client which lost its own gets it back and c stays the mean of all c_i.
"""

from __future__ import annotations

from pathlib import Path

from common import tensorfile
from common.tensors import Flat, Layout, Purpose


class Ledger:
    """The c_i of all clients of a run."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._layout = layout
        self.variates = layout.part(Purpose.CONTROL)
        self.counted: dict[int, int] = {}
        """Last counted round by client index."""
        folder.mkdir(exist_ok=True)

    def read(self, i: int) -> Flat | None:
        """c_i of a client; None while it is still zero or where S_svr is empty."""
        if i not in self.counted or not self.variates.specs:
            return None
        return tensorfile.read(self._path(i, self.counted[i]), self.variates)

    def write(self, i: int, r: int, up: Flat) -> None:
        """Takes over c_i from an update that was counted in round r."""
        if self.variates.specs:
            tensorfile.write(self._path(i, r), self._layout, up, Purpose.CONTROL)
            if i in self.counted:
                self._path(i, self.counted[i]).unlink(missing_ok=True)
        self.counted[i] = r

    def _path(self, i: int, r: int) -> Path:
        return self._folder / f"client-{i:05d}-round-{r:06d}.safetensors"
