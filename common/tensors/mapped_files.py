"""Flat buffers that are mapped files: what of them is in memory."""

from __future__ import annotations

import mmap

import numpy as np

from common.tensors.layout import Flat


def let_go(flat: Flat, start: int, stop: int) -> None:
    """Takes these bytes of a mapped file out of this process's memory; they are read again when needed.

    They stay in the system's cache for as long as it has room. A buffer that is no file is left alone.
    """
    if not isinstance(flat, np.memmap) or flat.mode not in ("r", "r+") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    mapped: object = flat
    while isinstance(mapped, np.ndarray):
        whole, mapped = mapped, mapped.base
    assert isinstance(mapped, mmap.mmap), "what is mapped has a mapping"
    before = flat.ctypes.data - whole.ctypes.data
    first = (before + start) // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first, before + stop - first)
