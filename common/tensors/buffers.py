"""Flat buffers that are used again from round to round.

Pages that are fresh from the kernel have to be cleared first, which takes longer than to fill them: with two
buffers of a model a round, that was a third of what a client's processor did in a transfer.
"""

from __future__ import annotations

import sys
import threading

from common.tensors.layout import OWN_PAGES_BYTES, Flat, Layout, TensorSpec

MOST_BYTES = 64 << 20
"""A larger buffer is not kept: of clients that share a machine only some have a round at the same time."""
_KEPT = 3
"""Buffers of a process: for what comes, what that means where it is coded, and what goes."""
_REFERENCES = 3
"""To a buffer that nobody else has: of its entry, of whoever looks at it, and of `getrefcount` itself."""

_entries: list[tuple[tuple[TensorSpec, ...], Flat]] = []
_lock = threading.Lock()


def reused(layout: Layout) -> Flat:
    """A buffer for the tensors of a layout, all of which are to be written: they are as another left them.

    It is one that was given out before and that nobody has a view of any more, or a new one. What lies
    between tensors is zero, because nobody writes there.
    """
    if not OWN_PAGES_BYTES <= layout.num_bytes <= MOST_BYTES:
        return layout.allocate()
    with _lock:
        for specs, flat in _entries:
            if specs == layout.specs and sys.getrefcount(flat) == _REFERENCES:
                return flat
        flat = layout.allocate()
        _entries.append((layout.specs, flat))
        del _entries[:-_KEPT]
        return flat
