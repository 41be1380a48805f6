"""Every element as a shorter number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.tensors.layout import BLOCK, Array, Flat, from_float64, to_float64
from common.wire.codecs.base import Codec

SCALED = 2048
"""Elements that share a scale in int8: small enough that an outlier spoils few of its neighbours."""
MAX_HALF, _MAX_BRAIN = 65504.0, 3.3895313892515355e38


class Half(Codec):
    """IEEE half precision."""

    number = 2
    name = "fp16"
    setting_names = ("fp16",)
    lossy = True

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """Two bytes each."""
        return 2 * num_elements

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Rounds to the nearest; saturates."""
        out.view("<f2")[:] = np.clip(values, -MAX_HALF, MAX_HALF)

    def decode(self, raw: Flat, out: Array) -> None:
        """Widens."""
        out[:] = raw.view("<f2")


class Brain(Codec):
    """bfloat16: float32's range with eight bits of precision."""

    number = 3
    name = "bf16"
    setting_names = ("bf16",)
    lossy = True

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """Two bytes each."""
        return 2 * num_elements

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Rounds to the nearest even; saturates."""
        halves = out.view("<u2")
        for start in range(0, len(values), BLOCK):
            part = values[start : start + BLOCK].astype(np.float64)
            np.clip(part, -_MAX_BRAIN, _MAX_BRAIN, out=part)
            halves[start : start + BLOCK] = from_float64(part, "bfloat16")

    def decode(self, raw: Flat, out: Array) -> None:
        """Widens."""
        halves = raw.view("<u2")
        for start in range(0, len(out), BLOCK):
            out[start : start + BLOCK] = to_float64(halves[start : start + BLOCK], "bfloat16")


@dataclass(frozen=True)
class Int8(Codec):
    """Signed bytes with a float32 scale for every block of elements."""

    block: int
    """Elements per scale; the number of elements for one scale per tensor."""
    number = 4
    name = "int8"
    setting_names = ("int8", "int8-tensor")
    lossy = True

    @classmethod
    def named(cls, setting: str, num_elements: int) -> Codec | None:
        """A scale per block for int8, one for the whole tensor for int8-tensor."""
        if setting not in cls.setting_names:
            return None
        return cls(min(SCALED, num_elements) if setting == "int8" else num_elements)

    @classmethod
    def announced(cls, num_elements: int, block: int, kept: int) -> Codec | None:
        """A block is not longer than the tensor."""
        return cls(block) if 1 <= block <= num_elements else None

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """A byte each, and the scales."""
        return num_elements + 4 * self._num_scales(num_elements)

    def _num_scales(self, num_elements: int) -> int:
        return -(-num_elements // self.block)

    def _slabs(self, num_elements: int) -> list[tuple[slice, slice]]:
        """Ranges of elements with the ranges of their scales; no block lies in two of them."""
        per_slab = max(1, BLOCK // self.block)
        return [
            (slice(s * self.block, (s + per_slab) * self.block), slice(s, s + per_slab))
            for s in range(0, self._num_scales(num_elements), per_slab)
        ]

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Rounds up or down at random, such that the mean is right."""
        split = 4 * self._num_scales(len(values))
        scales, bytes_ = out[:split].view("<f4"), out[split:].view(np.int8)  # (blocks,), (elements,)
        for elements, blocks in self._slabs(len(values)):
            part = values[elements]
            starts = np.arange(0, len(part), self.block)
            with np.errstate(over="ignore"):
                scales[blocks] = np.maximum.reduceat(np.abs(part), starts) / 127
            # The last block may be shorter; each element gets the scale of its block.
            step = np.repeat(scales[blocks], self.block)[: len(part)].astype(part.dtype)
            ratio = np.divide(part, step, out=np.zeros_like(part), where=step > 0)
            ratio += random.random(len(part), part.dtype.type)
            bytes_[elements] = np.clip(np.floor(ratio), -127, 127)

    def decode(self, raw: Flat, out: Array) -> None:
        """Multiplies by the scales."""
        split = 4 * self._num_scales(len(out))
        scales, bytes_ = raw[:split].view("<f4"), raw[split:].view(np.int8)
        for elements, blocks in self._slabs(len(out)):
            part = bytes_[elements].astype(out.dtype)
            part *= np.repeat(scales[blocks], self.block)[: len(part)]
            out[elements] = part
