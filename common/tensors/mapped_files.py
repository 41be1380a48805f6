"""Arrays in mapped files: what of them is in memory."""

from __future__ import annotations

import mmap

import numpy as np

from common.tensors.layout import Array


def let_go(part: Array) -> None:
    """Takes a part of a mapped file out of this process's memory; it is read again when it is needed.

    It stays in the system's cache for as long as that has room. An array in no file is left alone.
    """
    if not isinstance(part, np.memmap) or part.mode not in ("r", "r+") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    mapped: object = part
    while isinstance(mapped, np.ndarray):
        whole, mapped = mapped, mapped.base
    assert isinstance(mapped, mmap.mmap), "what is mapped has a mapping"
    start = part.ctypes.data - whole.ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first, start + part.nbytes - first)
