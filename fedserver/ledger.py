"""Every client's variate as last counted, one file each: c_i, or FedDyn's l_i.

c moves by the differences between a client's new c_i and the one counted before; the server keeps the latter
itself, so that a client which lost its own gets it back and c stays the mean of all c_i. A new variate is
written beside the old one when its update is folded and takes its place when the round closes.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from common import tensorfile
from common.algorithms.base import Algorithm
from common.tensors import Flat, Layout, Purpose


class Ledger:
    """The variates of all clients of a run."""

    def __init__(self, folder: Path, layout: Layout, algorithm: Algorithm, pull: float) -> None:
        self._folder = folder
        self._layout = layout
        self._algorithm = algorithm
        self._pull = pull
        self.variates = algorithm.variates(layout)
        self.counted: dict[int, int] = {}
        """Last counted round by client index."""
        self.norms: dict[int, float] = {}
        """||c_i|| by client index."""
        folder.mkdir(exist_ok=True)

    def read(self, i: int) -> Flat | None:
        """The variate of a client; None while it is still zero or where the algorithm has none."""
        if i not in self.counted or not self.variates.specs:
            return None
        return tensorfile.read(self._path(i, self.counted[i]), self.variates)

    def stage(self, i: int, r: int, seen: Flat, values: Flat) -> None:
        """Writes the variate that client i has after its update for round r; `seen` is the broadcast."""
        if self.variates.specs:
            sent = bool(self._layout.indices(Purpose.CONTROL))
            new = self._sent(values) if sent else self._computed(i, seen, values)
            tensorfile.write(self._path(i, r), self.variates, new, Purpose.CLIENT_CONTROL)
            arrays = (self.variates.array(new, k) for k in range(len(self.variates.specs)))
            self.norms[i] = math.sqrt(sum(float(np.square(a, dtype=np.float64).sum()) for a in arrays))

    def count(self, i: int, r: int) -> None:
        """Takes note that a client's update entered round r."""
        if self.variates.specs and i in self.counted:
            self._path(i, self.counted[i]).unlink(missing_ok=True)
        self.counted[i] = r

    def _sent(self, values: Flat) -> Flat:
        """The c_i of an update."""
        new = self.variates.allocate()
        for to, at in enumerate(self._layout.indices(Purpose.CONTROL)):
            self.variates.raw(new, to)[:] = self._layout.raw(values, at)
        return new

    def _computed(self, i: int, seen: Flat, values: Flat) -> Flat:
        """The variate that the client computes for itself, by the same operations in the same precision."""
        old, new = self.read(i), self.variates.allocate()
        for to, at in enumerate(self._layout.indices(Purpose.MODEL)):
            before = self.variates.array(new if old is None else old, to)
            x, y = (self._layout.array(flat, at) for flat in (seen, values))
            self.variates.array(new, to)[...] = self._algorithm.next_variate(
                before, None, x, y, 0.0, self._pull
            )
        return new

    def _path(self, i: int, r: int) -> Path:
        return self._folder / f"client-{i:05d}-round-{r:06d}.safetensors"
