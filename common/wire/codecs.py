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

from common.errors import ConfigError, Fault, WireError
from common.tensors.layout import BLOCK, Array, Flat, from_float64, to_float64

SCALED = 2048
"""Elements that share a scale in int8: small enough that an outlier spoils few of its neighbours."""
_CODED = ("float32", "float64")
_MAX_HALF = 65504.0
_MAX_BRAIN = 3.3895313892515355e38


@dataclass(frozen=True)
class Codec:
    """The elements as they are. Other codecs override what they do otherwise."""

    number: ClassVar[int] = 1
    lossy: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """For people and settings."""
        return "fp32"

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """Bytes that this many elements take."""
        return num_elements * itemsize

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Writes elements as bytes."""
        out[:] = values.view(np.uint8)

    def decode(self, raw: Flat, out: Array) -> None:
        """Reads elements from bytes; raises a WireError for bytes that mean nothing."""
        out.view(np.uint8)[:] = raw


@dataclass(frozen=True)
class Half(Codec):
    """IEEE half precision."""

    number: ClassVar[int] = 2
    lossy: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """For people and settings."""
        return "fp16"

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """Two bytes each."""
        return 2 * num_elements

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Rounds to the nearest; saturates."""
        out.view("<f2")[:] = np.clip(values, -_MAX_HALF, _MAX_HALF)

    def decode(self, raw: Flat, out: Array) -> None:
        """Widens."""
        out[:] = raw.view("<f2")


@dataclass(frozen=True)
class Brain(Codec):
    """bfloat16: float32's range with eight bits of precision."""

    number: ClassVar[int] = 3
    lossy: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """For people and settings."""
        return "bf16"

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
    number: ClassVar[int] = 4
    lossy: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """For people and settings."""
        return "int8"

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
        scales, bytes_ = out[:split].view("<f4"), out[split:].view(np.int8)
        for elements, blocks in self._slabs(len(values)):
            part = values[elements]
            starts = np.arange(0, len(part), self.block)
            with np.errstate(over="ignore"):
                scales[blocks] = np.maximum.reduceat(np.abs(part), starts) / 127
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


@dataclass(frozen=True)
class TopK(Codec):
    """Only the elements that are largest in magnitude, with their indices."""

    kept: int
    number: ClassVar[int] = 5
    lossy: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """For people and settings."""
        return "topk"

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """An index and a float32 each."""
        return 8 * self.kept

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Picks and sorts."""
        largest = np.argpartition(np.abs(values), len(values) - self.kept)[len(values) - self.kept :]
        largest.sort()
        out[: 4 * self.kept].view("<u4")[:] = largest
        out[4 * self.kept :].view("<f4")[:] = values[largest]

    def decode(self, raw: Flat, out: Array) -> None:
        """Zero but for what was kept."""
        indices = raw[: 4 * self.kept].view("<u4")
        rising = bool(np.all(indices[1:] > indices[:-1]))
        if not rising or int(indices[-1]) >= len(out):
            raise WireError.broken_contract(f"indices must rise and stay below {len(out)}")
        out[:] = 0
        out[indices] = raw[4 * self.kept :].view("<f4")


@dataclass(frozen=True)
class Derived(Codec):
    """Nothing is sent; the receiver computes the tensor."""

    number: ClassVar[int] = 6

    @property
    def name(self) -> str:
        """For people."""
        return "derived"

    def num_bytes(self, num_elements: int, itemsize: int) -> int:
        """None."""
        return 0

    def encode(self, values: Array, out: Flat, random: np.random.Generator) -> None:
        """Nothing to write."""

    def decode(self, raw: Flat, out: Array) -> None:
        """Left as it is until it is computed."""


RAW, DERIVED = Codec(), Derived()
FOR_ALL = ("fp32", "fp16", "bf16", "int8", "int8-tensor")
"""Names a setting may have; updates also have topk:FRACTION."""


@dataclass(frozen=True)
class Codecs:
    """Which codec x, the updates and the control variates of a run have, by name."""

    down: str = "fp32"
    up: str = "fp32"
    control: str = "fp32"

    @classmethod
    def parsed(cls, settings: tuple[str, ...]) -> Codecs:
        """From settings such as int8 (of updates), down=fp16 or control=int8."""
        chosen: dict[str, str] = {}
        for setting in (part for text in settings for part in text.split(",")):
            key, _, name = setting.strip().rpartition("=")
            key = key or "up"
            if key not in ("down", "up", "control"):
                raise ConfigError(f"--codec {setting}: codecs are for down, up or control, got {key!r}")
            if key in chosen:
                raise ConfigError(f"--codec gives {key} twice: {chosen[key]} and {name}; give it once")
            if name not in FOR_ALL and not (key == "up" and _fraction(name) is not None):
                choices = ", ".join(FOR_ALL) + (" or topk:F with F from 0 to 1" if key == "up" else "")
                raise ConfigError(f"--codec {setting}: {key} can be {choices}, got {name!r}")
            chosen[key] = name
        return cls(**chosen)


def _fraction(name: str) -> float | None:
    """F of topk:F."""
    kind, _, text = name.partition(":")
    try:
        fraction = float(text)
    except ValueError:
        return None
    return fraction if kind == "topk" and 0 < fraction < 1 else None


def chosen(name: str, dtype: str, num_elements: int) -> Codec:
    """The codec of this name for a tensor; raw where it does not apply or would save nothing."""
    codec = RAW
    if dtype in _CODED and num_elements:
        fraction = _fraction(name)
        match name:
            case "fp16":
                codec = Half()
            case "bf16":
                codec = Brain()
            case "int8":
                codec = Int8(min(SCALED, num_elements))
            case "int8-tensor":
                codec = Int8(num_elements)
            case _ if fraction is not None and num_elements < 1 << 32:
                codec = TopK(max(1, math.ceil(fraction * num_elements)))
    itemsize = 8 if dtype == "float64" else 4
    saves = codec.num_bytes(num_elements, itemsize) < num_elements * itemsize
    return codec if saves else RAW


def announced(number: int, dtype: str, num_elements: int, block: int, kept: int) -> Codec:
    """The codec that a peer announces for a tensor, once its numbers are known to make sense."""
    if number == RAW.number:
        return RAW
    if number == DERIVED.number:
        return DERIVED
    if dtype not in _CODED or not num_elements:
        raise WireError(Fault.WRONG_DTYPE, f"{dtype} has no codec but RAW, got number {number}")
    if number == Int8.number and 1 <= block <= num_elements:
        return Int8(block)
    if number == TopK.number and 1 <= kept <= num_elements < 1 << 32:
        return TopK(kept)
    if number in (Half.number, Brain.number):
        return Half() if number == Half.number else Brain()
    raise WireError.broken_contract(
        f"codec number {number} with block {block} and {kept} kept makes no sense"
    )
