"""How the elements of a tensor become bytes: as they are, as shorter numbers, or only the largest of them.

A codec works on one-dimensional float32 or float64 arrays and computes in their dtype with plain elementwise
operations, so that whoever decodes gets the same numbers to the bit. Rounding to int8 is stochastic and
therefore right on average; what any lossy codec leaves out of an update its sender adds to the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.errors import WireError
from common.tensors.layout import BLOCK, Array, Flat, from_float64, to_float64

SCALED = 2048
"""Elements that share a scale in int8: small enough that an outlier spoils few of its neighbours."""
MAX_INDEXED = (1 << 32) - 1
"""Elements that the four bytes of an index in top-k can tell apart."""
MAX_HALF, _MAX_BRAIN = 65504.0, 3.3895313892515355e38


@dataclass(frozen=True)
class Codec:
    """The elements as they are. Other codecs override what they do otherwise.

    The fields of a codec are its parameters, by the names that they have in a manifest.
    """

    number: ClassVar[int] = 1
    """What manifests call it."""
    name: ClassVar[str] = "fp32"
    """What messages and views call it."""
    setting_names: ClassVar[tuple[str, ...]] = ("fp32",)
    """What settings call it, for tensors of any purpose."""
    lossy: ClassVar[bool] = False

    @classmethod
    def named(cls, setting: str, num_elements: int) -> Codec | None:
        """The codec that a setting names, for a tensor of this size; None if that is another one."""
        return cls() if setting in cls.setting_names else None

    @classmethod
    def announced(cls, num_elements: int, block: int, kept: int) -> Codec | None:
        """The codec with the parameters that a peer announces; None if they make no sense."""
        return cls()

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """Bytes that this many elements take."""
        return num_elements * itemsize

    def max_error(self, largest: float) -> float:
        """The most that coding may change an element of a tensor whose elements are at most this large."""
        return largest if self.lossy else 0.0

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Writes elements as bytes."""
        out[:] = values.view(np.uint8)

    def decode(self, raw: Flat, out: Array) -> None:
        """Reads elements from bytes; raises a WireError for bytes that mean nothing."""
        out.view(np.uint8)[:] = raw


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


class Derived(Codec):
    """Nothing is sent; the receiver computes the tensor."""

    number, name = 6, "derived"
    setting_names = ()

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """None."""
        return 0

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Nothing to write."""

    def decode(self, raw: Flat, out: Array) -> None:
        """Zero until it is computed."""
        out[...] = 0


RAW, DERIVED = Codec(), Derived()
