"""Named tensors as one flat buffer, without torch.

A `Layout` says which tensors there are and where each one lies in a flat byte buffer. What a server
broadcasts (x and c) and what a client returns (y_i and c_i) have the same layout, so both are one buffer
each.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Flat = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

ALIGNMENT = 64
"""Every tensor starts at a multiple of this in a flat buffer (never on the wire)."""
OWN_PAGES_BYTES = 4 << 20
BLOCK = 1 << 18
"""Elements handled at a time where a copy of all of them would be large."""


class Purpose(IntEnum):
    """What a tensor is for; values as in tensor.proto."""

    MODEL = 1
    BUFFER = 2
    CONTROL = 3
    CLIENT_CONTROL = 4
    FROZEN = 5


@dataclass(frozen=True)
class DType:
    """An element type: torch's name, its number on the wire, and the numpy type that stores it."""

    name: str
    number: int
    storage: np.dtype[Any]

    @property
    def averages(self) -> bool:
        """Whether a mean over clients makes sense and is implemented."""
        return self.storage.kind != "c" and not self.name.startswith("float8")

    @property
    def trains(self) -> bool:
        """Whether a parameter may have this type."""
        return self.name in ("float64", "float32", "float16", "bfloat16")


# numpy has no bfloat16 and no float8: their bits are kept in unsigned integers.
DTYPES = {
    name: DType(name, number, np.dtype(storage))
    for number, (name, storage) in enumerate(
        [
            ("float32", "<f4"),
            ("float64", "<f8"),
            ("float16", "<f2"),
            ("bfloat16", "<u2"),
            ("int64", "<i8"),
            ("int32", "<i4"),
            ("int16", "<i2"),
            ("int8", "i1"),
            ("uint8", "u1"),
            ("bool", "?"),
            ("uint16", "<u2"),
            ("uint32", "<u4"),
            ("uint64", "<u8"),
            ("complex64", "<c8"),
            ("complex128", "<c16"),
            ("float8_e4m3fn", "u1"),
            ("float8_e5m2", "u1"),
        ],
        start=1,
    )
}


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor: everything about it but its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    purpose: Purpose = Purpose.MODEL

    @cached_property
    def num_elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @cached_property
    def num_bytes(self) -> int:
        """Number of bytes the elements take."""
        return self.num_elements * DTYPES[self.dtype].storage.itemsize


class Layout:
    """Where each of a list of tensors lies in a flat buffer."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self.specs: tuple[TensorSpec, ...] = tuple(specs)
        self.offsets: list[int] = []
        end = 0
        for spec in self.specs:
            self.offsets.append(end)
            end += -(-spec.num_bytes // ALIGNMENT) * ALIGNMENT
        self.num_bytes = end
        self._parts: dict[tuple[Purpose, ...], Layout] = {}

    def allocate(self) -> Flat:
        """A zeroed buffer; a large one has pages of its own, which go back to the system with it."""
        if self.num_bytes < OWN_PAGES_BYTES:
            return np.zeros(self.num_bytes, np.uint8)
        pages = mmap.mmap(-1, self.num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # Not every kernel has large pages.
                pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, np.uint8)

    def raw(self, flat: Flat, index: int) -> Flat:
        """The bytes of one tensor, as a view."""
        start = self.offsets[index]
        return flat[start : start + self.specs[index].num_bytes]

    def array(self, flat: Flat, index: int) -> Array:
        """The elements of one tensor in their storage type, as a view of the right shape."""
        spec = self.specs[index]
        return self.raw(flat, index).view(DTYPES[spec.dtype].storage).reshape(spec.shape)

    def store(self, flat: Flat, index: int, values: Float64) -> None:
        """Writes one tensor, rounded to its type."""
        array = self.array(flat, index)
        array[...] = from_float64(values, self.specs[index].dtype).reshape(array.shape)

    def indices(self, *purposes: Purpose) -> list[int]:
        """Positions of the tensors with one of these purposes."""
        return [k for k, spec in enumerate(self.specs) if spec.purpose in purposes]

    def part(self, *purposes: Purpose) -> Layout:
        """The layout of only the tensors with one of these purposes; asked for again, the same one."""
        if purposes not in self._parts:
            self._parts[purposes] = Layout(self.specs[k] for k in self.indices(*purposes))
        return self._parts[purposes]

    def reducing(self, names: Collection[str]) -> Layout:
        """The same model and buffers, and a c for these parameters and no others."""
        model = self.part(Purpose.MODEL, Purpose.BUFFER).specs
        reduced = (spec for spec in model if spec.purpose is Purpose.MODEL and spec.name in names)
        return Layout([*model, *(replace(spec, purpose=Purpose.CONTROL) for spec in reduced)])

    def payload_bytes(self, *purposes: Purpose) -> int:
        """Bytes of the tensors with these purposes, alignment left out."""
        return sum(self.specs[k].num_bytes for k in self.indices(*purposes))


NOTHING = Layout([])
"""No tensors at all."""


def fingerprint(specs: Sequence[TensorSpec]) -> str:
    """SHA-256 over names, dtypes, shapes and purposes: alike if two models exchange the same tensors."""
    lines = (f"{s.purpose.name} {s.dtype} {'x'.join(map(str, s.shape))} {s.name}\n" for s in specs)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def to_float64(values: Array, dtype: str) -> Float64:
    """Stored elements as float64, exactly (integers beyond 2**53 are rounded)."""
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float64)


def from_float64(values: Float64, dtype: str) -> Array:
    """float64 values as stored elements, rounded to the nearest."""
    storage = DTYPES[dtype].storage
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        nearest_even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (nearest_even >> np.uint32(16)).astype(storage)
    if storage.kind in "iub":
        return np.rint(values).astype(storage)
    return values.astype(storage)


def norm(arrays: Iterable[Array]) -> float:
    """The Euclidean norm of several arrays together; infinite where the squares are too large."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays))


def all_finite(values: Array, dtype: str) -> bool:
    """Whether no element is NaN or infinite."""
    if dtype == "bfloat16":
        return not bool(np.any((values & np.uint16(0x7F80)) == 0x7F80))
    if values.dtype.kind not in "fc":
        return True
    if values.dtype.char in "fd":
        flat = values.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            # One quick pass tells, unless the sum itself is too large. Of numbers in the middle of a message,
            # which begin at any byte, BLAS would make a copy first.
            if math.isfinite(flat @ flat if flat.flags.aligned else np.einsum("i->", flat)):
                return True
    return bool(np.isfinite(values).all())
