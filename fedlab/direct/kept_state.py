"""What the clients of a simulation remember, where any process finds it, also one that is started later.

    ledger/client-IIIII-round-RRRRRR.safetensors     c_i, which the server has written down anyway
    clients/IIIII/RRRRRR                             what the server has not: residuals, personal tensors

A state is in memory too as long as there is room, so that files are read only by a process that has not
written them. Which round's state counts the server says, as to any client; a checkpoint that is written
late, or damaged, may need an earlier one, so that some are kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.atomic import PRIVATE, make_private, replacing
from common.errors import StateError
from common.records.client import KnownRun
from common.tensors import safetensors_files
from common.tensors.classes import FrozenTensors
from common.tensors.layout import Flat, Layout
from fedclient.midround.file import MidRoundFile
from fedserver.store.checkpoints import KEPT
from fedserver.store.variates import variate_path

CLIENTS = "clients"
"""The folder in a run directory."""


@dataclass
class Together:
    """What the states of all clients of a process have in common."""

    run_path: Path
    variates: Layout
    """c_i, or FedDyn's l_i, which open a state."""
    frozen: dict[str, Flat]
    """Tensors that stay as they are, by digest."""
    bytes_left: int
    """Of states that may be in memory too."""


class KeptState:
    """The state of one client of a simulation, for the only run that it is in."""

    def __init__(self, together: Together, index: int) -> None:
        self.state = KeptRunState(together, index)

    def of_run(self, run_id: str, client: str, fingerprint: str) -> KeptRunState:
        """There is no other."""
        return self.state


class KeptRunState:
    """In memory as long as there is room, and in files."""

    def __init__(self, together: Together, index: int) -> None:
        self._together = together
        self.has_frozen = False
        """Whether this client, and not another, has the tensors that stay as they are."""
        self.midround: MidRoundFile | None = None
        self._variates: dict[int, Flat] = {}
        self._variate = together.variates.num_bytes
        self._folder = together.run_path / CLIENTS / f"{index:05d}"
        self._index = index
        self._rounds: set[int] = set()

    def hold(self, rounds: tuple[int, ...]) -> None:
        """States of these rounds are here, whoever has written them; no others are."""
        for r in self._variates.keys() - {*rounds}:
            self._drop(r)
        self._rounds = {*rounds}

    def held_rounds(self) -> list[int]:
        """Rounds whose state is here."""
        return sorted(self._rounds)

    def read(self, r: int, layout: Layout) -> Flat:
        """The state of round r; zero for r = 0."""
        if r in self._variates:
            return self._variates[r]
        flat, variates = layout.allocate(), self._together.variates
        if not r:
            return flat
        if variates.specs:
            path = variate_path(self._together.run_path / "ledger", self._index, r)
            flat[: self._variate] = safetensors_files.read(path, variates)
        if len(flat) > self._variate:
            flat[self._variate :] = self._rest(r, len(flat) - self._variate)
        return flat

    def read_last(self, r: int, layout: Layout) -> Flat:
        """The tensors that come last in the state of round r."""
        flat = self.read(r, layout)
        return flat[len(flat) - layout.num_bytes :]

    def _rest(self, r: int, num_bytes: int) -> Flat:
        path = self._path(r)
        try:
            found = np.fromfile(path, np.uint8)
        except OSError as error:
            raise StateError(
                f"{path} cannot be read: {error.strerror}; start anew in another --run-dir"
            ) from error
        if len(found) != num_bytes:
            raise StateError(
                f"{path} has {len(found)} bytes, expected {num_bytes}; start anew in another --run-dir"
            )
        return found

    def write(self, r: int, layout: Layout, flat: Flat) -> None:
        """Remembers a state as that of round r; c_i is with the server, as soon as it counts."""
        rest = flat[self._variate :]
        if len(rest):
            make_private(self._folder)
            with replacing(self._path(r), PRIVATE, synced=False) as scratch:
                rest.tofile(scratch)
        self._drop(r)
        if len(flat) <= self._together.bytes_left:
            self._together.bytes_left -= len(flat)
            self._variates[r] = flat
        self._rounds.add(r)

    def settle(self, counted: int) -> None:
        """Drops every state but the one that counts, and files that no checkpoint can need any more."""
        self.hold((counted,) if counted in self._rounds else ())
        if self._folder.exists():
            rounds = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())
            earlier = [r for r in rounds if r < counted]
            for r in {*rounds} - {counted, *earlier[-KEPT:]}:
                self._path(r).unlink()

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
        return self._together.frozen.setdefault(tensors.digest, tensors.flat)

    def frozen(self, layout: Layout, digest: str) -> Flat | None:
        """The tensors that this client, and not another, has kept."""
        return self._together.frozen.get(digest) if self.has_frozen else None

    def remember(self, run: KnownRun) -> None:
        """Nobody asks later."""

    def end(self) -> None:
        """Nothing is left to drop."""

    def _drop(self, r: int) -> None:
        if r in self._variates:
            self._together.bytes_left += len(self._variates.pop(r))

    def _path(self, r: int) -> Path:
        return self._folder / f"{r:06d}"


def forget_all(run_path: Path) -> None:
    """Nobody goes on with these clients: the run is over, or a new one begins here."""
    shutil.rmtree(run_path / CLIENTS, ignore_errors=True)
