"""Arrays in mapped files: what of them is in memory."""

from __future__ import annotations

import mmap

import numpy as np

from common.tensors.layout import Array

WINDOW_BYTES = 2 << 20
"""What is let go of at a time: every core has to hear of it, so that half as much costs nearly as much."""


def let_go_behind(part: Array) -> None:
    """Takes the windows of a mapped file that end in this part out of this process's memory.

    So whoever reads a file part by part has no more than a window of it there; what is needed again is read
    again. It stays in the system's cache for as long as that has room. An array in no file is left alone.
    """
    if not isinstance(part, np.memmap) or part.mode not in ("r", "r+") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    mapped: object = part
    while isinstance(mapped, np.ndarray):
        whole, mapped = mapped, mapped.base
    assert isinstance(mapped, mmap.mmap), "what is mapped has a mapping"
    start = part.ctypes.data - whole.ctypes.data
    first, end = (at // WINDOW_BYTES * WINDOW_BYTES for at in (start, start + part.nbytes))
    if first < end:
        mapped.madvise(mmap.MADV_DONTNEED, first, end - first)
