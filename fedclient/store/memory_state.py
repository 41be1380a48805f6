"""The memory twin of a state directory: for clients that end with the process they live in."""

from __future__ import annotations

from collections.abc import Iterable

from common.records.client import KnownRun
from common.tensors.classes import FrozenTensors
from common.tensors.layout import Flat, Layout
from fedclient.midround.file import MidRoundFile


class MemoryState:
    """A client's state that need not outlive the process."""

    def __init__(self, frozen: dict[str, Flat] | None = None) -> None:
        """`frozen` has tensors that stay as they are, once for all clients of a process, by digest."""
        self._frozen = {} if frozen is None else frozen
        self._runs: dict[str, MemoryRunState] = {}

    def of_run(self, run_id: str, client: str, fingerprint: str) -> MemoryRunState:
        """What belongs to one run."""
        return self._runs.setdefault(run_id, MemoryRunState(self._frozen))


class MemoryRunState:
    """What a client remembers of one run, in memory."""

    def __init__(self, frozen: dict[str, Flat] | None = None) -> None:
        self._frozen = {} if frozen is None else frozen
        self.has_frozen = False
        """Whether this client, and not another, has the tensors that stay as they are."""
        self._variates: dict[int, Flat] = {}
        self.midround: MidRoundFile | None = None

    def held_rounds(self) -> list[int]:
        """Rounds whose c_i is here."""
        return sorted(self._variates)

    def read(self, r: int, layout: Layout) -> Flat:
        """c_i as of round r; zero for r = 0."""
        return self._variates[r] if r else layout.allocate()

    def read_last(self, r: int, layout: Layout) -> Flat:
        """The tensors that come last in the state of round r."""
        flat = self.read(r, layout)
        return flat[len(flat) - layout.num_bytes :]

    def write(self, r: int, layout: Layout, flat: Flat) -> None:
        """Remembers c_i as that of round r."""
        self._variates[r] = flat

    def settle(self, counted: int) -> None:
        """Drops every c_i but the one that counts."""
        for r in self._variates.keys() - {counted}:
            del self._variates[r]

    def drop_damaged(self) -> list[str]:
        """There is none."""
        return []

    def store_update(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Does nothing: an update is stored for a later process, and there is none."""

    def stored_update(self) -> bytes | None:
        """There never is one."""
        return None

    def drop_update(self) -> None:
        """There is none to drop."""

    def keep_frozen(self, tensors: FrozenTensors) -> Flat:
        """Keeps tensors that stay as they are, where another client may have put the same."""
        self.has_frozen = True
        return self._frozen.setdefault(tensors.digest, tensors.flat)

    def frozen(self, layout: Layout, digest: str) -> Flat | None:
        """The tensors that this client, and not another, has kept."""
        return self._frozen.get(digest) if self.has_frozen else None

    def remember(self, run: KnownRun) -> None:
        """Nobody asks later."""

    def end(self) -> None:
        """Nothing is left to drop."""
