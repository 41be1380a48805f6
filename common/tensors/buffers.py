"""Flat buffers that are used again from round to round.

Pages that are fresh from the kernel have to be cleared first, which takes longer than to fill them: with two
buffers of a model a round, that was a third of what a client's processor did in a transfer, and with one a
tenth of a server's step.
"""

from __future__ import annotations

import sys
import threading

from common.tensors.layout import OWN_PAGES_BYTES, Flat, Layout, TensorSpec

MOST_BYTES = 64 << 20
"""A larger buffer is not kept: of clients that share a machine only some have a round at the same time."""
_REFERENCES = 3
"""To a buffer that nobody else has: of its entry, of whoever looks at it, and of `getrefcount` itself."""


class Buffers:
    """Gives out buffers, and the same again when nobody has a view of them any more."""

    def __init__(self, kept: int, most_bytes: int = MOST_BYTES) -> None:
        """Keeps so many, none of which has more bytes than that."""
        self._kept = kept
        self._most_bytes = most_bytes
        self._entries: list[tuple[tuple[TensorSpec, ...], Flat]] = []
        self._lock = threading.Lock()

    def take(self, layout: Layout) -> Flat:
        """A buffer for the tensors of a layout, all of which are to be written: they are as they were left.

        It was given out before, or is new. What lies between tensors is zero, because nobody writes there.
        """
        if not OWN_PAGES_BYTES <= layout.num_bytes <= self._most_bytes:
            return layout.allocate()
        with self._lock:
            for specs, flat in self._entries:
                if specs == layout.specs and sys.getrefcount(flat) == _REFERENCES:
                    return flat
            flat = layout.allocate()
            self._entries.append((layout.specs, flat))
            del self._entries[: -self._kept]
            return flat


reused = Buffers(kept=3).take
"""Those of a client's process: for what comes, what that means where it is coded, and what goes."""
