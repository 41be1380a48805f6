"""Only the largest elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from common.errors import WireError
from common.tensors.layout import Array, Flat
from common.wire.codecs.base import Codec

MAX_INDEXED = (1 << 32) - 1
"""Elements that the four bytes of an index in top-k can tell apart."""


def top_share(setting: str) -> float | None:
    """F of topk:F, None for any other setting."""
    kind, _, text = setting.partition(":")
    try:
        share = float(text)
    except ValueError:
        return None
    return share if kind == "topk" and 0 < share < 1 else None


@dataclass(frozen=True)
class TopK(Codec):
    """Only the elements that are largest in magnitude, with their indices."""

    kept: int
    number = 5
    name = "topk"
    setting_names = ()
    lossy = True

    @classmethod
    def named(cls, setting: str, num_elements: int) -> Codec | None:
        """topk:F takes the share F, rounded up."""
        share = top_share(setting)
        if share is None or num_elements > MAX_INDEXED:
            return None
        return cls(max(1, math.ceil(share * num_elements)))

    @classmethod
    def announced(cls, num_elements: int, block: int, kept: int) -> Codec | None:
        """Not more are kept than there are."""
        return cls(kept) if 1 <= kept <= num_elements <= MAX_INDEXED else None

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """An index and a float32 each."""
        return 8 * self.kept

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Picks the largest and sorts them by index."""
        largest = np.argpartition(np.abs(values), len(values) - self.kept)[len(values) - self.kept :]
        largest.sort()
        out[: 4 * self.kept].view("<u4")[:] = largest
        out[4 * self.kept :].view("<f4")[:] = values[largest]

    def decode(self, raw: Flat, out: Array) -> None:
        """Zero but for what was kept."""
        indices = raw[: 4 * self.kept].view("<u4")
        if not np.all(indices[1:] > indices[:-1]) or int(indices[-1]) >= len(out):
            raise WireError.broken_contract(f"indices must rise and stay below {len(out)}")
        out[:] = 0
        out[indices] = raw[4 * self.kept :].view("<f4")
