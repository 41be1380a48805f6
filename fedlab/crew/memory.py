"""Memory that a simulation and its workers share: it is there before they are forked, and ends with them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from common.tensors.layout import Flat
from fedlab.direct.rooms import KEPT_BYTES


def shared(num_bytes: int) -> Flat:
    """Zeroed pages; those that nobody writes to take no memory."""
    return np.frombuffer(mmap.mmap(-1, max(num_bytes, 1)), np.uint8)[:num_bytes]


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """What all processes of a simulation see."""

    broadcasts: tuple[Flat, Flat]
    """x, buffers and c as they travel, of odd and of even rounds: a client may still look at the last."""
    rooms: tuple[Flat, ...]
    """For the updates of a round; the server keeps them until it is over."""
    passing: tuple[Flat, ...]
    """One for each worker: an update that cannot stay in memory is copied from there."""
    values_bytes: int
    """How far y_i, the buffers and c_i+ reach in a room; their bytes come behind, where they are coded."""

    @classmethod
    def of(
        cls, broadcast_bytes: int, values_bytes: int, coded_bytes: int, in_a_round: int, jobs: int
    ) -> SharedMemory:
        """For rounds of so many clients."""
        room_bytes = values_bytes + coded_bytes
        kept = min(in_a_round, KEPT_BYTES // max(room_bytes, 1))
        return cls(
            broadcasts=(shared(broadcast_bytes), shared(broadcast_bytes)),
            rooms=tuple(shared(room_bytes) for _ in range(kept)),
            passing=tuple(shared(room_bytes) for _ in range(jobs if kept < in_a_round else 0)),
            values_bytes=values_bytes,
        )

    def room(self, number: int) -> tuple[Flat, bool]:
        """A room, and whether the server may keep it until the round is over."""
        stays = number < len(self.rooms)
        return (self.rooms[number] if stays else self.passing[number - len(self.rooms)]), stays
