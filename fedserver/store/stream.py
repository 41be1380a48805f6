"""A stream that carries an upload, or what is left of one."""

from __future__ import annotations

from collections.abc import Callable


class Stream:
    """One stream of an upload, until another takes its place."""

    def __init__(self) -> None:
        self.ended = False
        self.on_end: Callable[[], None] | None = None
        """Who wants to know."""

    def end(self) -> None:
        """Its time is over."""
        if not self.ended:
            self.ended = True
            if self.on_end is not None:
                self.on_end()
