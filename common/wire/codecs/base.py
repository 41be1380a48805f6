"""What a codec is, and the two that need no computation: elements as they are, and none at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from common.tensors.layout import Array, Flat


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
