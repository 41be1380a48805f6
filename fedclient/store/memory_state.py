"""The memory twin of a state directory: for clients that end with the process they live in."""

from __future__ import annotations

from collections.abc import Sequence

from common.tensors.layout import Flat, Layout


class MemoryState:
    """A client's state that need not outlive the process."""

    def __init__(self) -> None:
        self._runs: dict[str, MemoryRunState] = {}

    def of_run(self, run_id: str, client: str, fingerprint: str) -> MemoryRunState:
        """What belongs to one run."""
        return self._runs.setdefault(run_id, MemoryRunState())


class MemoryRunState:
    """What a client remembers of one run, in memory."""

    def __init__(self) -> None:
        self._variates: dict[int, Flat] = {}

    def held_rounds(self) -> list[int]:
        """Rounds whose c_i is here."""
        return sorted(self._variates)

    def read(self, r: int, layout: Layout) -> Flat:
        """c_i as of round r; zero for r = 0."""
        return self._variates[r] if r else layout.allocate()

    def write(self, r: int, layout: Layout, flat: Flat) -> None:
        """Remembers c_i as that of round r."""
        self._variates[r] = flat

    def settle(self, counted: int) -> None:
        """Drops every c_i but the one that counts."""
        self._variates = {r: flat for r, flat in self._variates.items() if r == counted}

    def drop_damaged(self) -> list[str]:
        """There is none."""
        return []

    def store_update(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Does nothing: an update is stored for a later process, and there is none."""

    def stored_update(self) -> bytes | None:
        """There never is one."""
        return None

    def drop_update(self) -> None:
        """There is none to drop."""
