"""What a client remembers, whether in a directory or in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from common.records.client import KnownRun
from common.tensors.classes import FrozenTensors
from common.tensors.layout import Flat, Layout
from fedclient.midround.file import MidRoundFile


class RunState(Protocol):
    """What a client remembers of one run."""

    midround: MidRoundFile | None
    """Where a round under way is saved, if there is such a place."""

    def held_rounds(self) -> list[int]:
        """Rounds whose c_i is here."""

    def read(self, r: int, layout: Layout) -> Flat:
        """c_i as of round r; zero for r = 0."""

    def read_last(self, r: int, layout: Layout) -> Flat:
        """The tensors that come last in the state of round r."""

    def write(self, r: int, layout: Layout, flat: Flat) -> None:
        """Remembers c_i as that of round r."""

    def settle(self, counted: int) -> None:
        """Drops every c_i but the one that counts."""

    def drop_damaged(self) -> list[str]:
        """Drops every c_i that is not as it was written; says what is wrong with each."""

    def store_update(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Stores an update until the next one."""

    def stored_update(self) -> bytes | None:
        """The update that was stored."""

    def drop_update(self) -> None:
        """Forgets it."""

    def keep_frozen(self, tensors: FrozenTensors) -> Flat:
        """Keeps tensors that stay as they are; returns them as they are kept."""

    def frozen(self, layout: Layout, digest: str) -> Flat | None:
        """The tensors that were kept, if they are these."""

    def end(self) -> None:
        """The run is over, and nobody asks for an update or a round of it any more."""

    def remember(self, run: KnownRun) -> None:
        """Writes down what is trained, for later."""


class ClientState(Protocol):
    """Where a client remembers things: a directory, or memory."""

    def of_run(self, run_id: str, client: str, fingerprint: str) -> RunState:
        """What belongs to one run, for this client and a model of this fingerprint."""
