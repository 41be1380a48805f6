"""What a client remembers on disk: its c_i and, with lossy coding, what its updates have left out so far.

There is one file per round it came from.

After training round r the new c_i is written as round r's beside the one before. Which of the two is valid
the server says in the next round's header: r if the update was counted, the earlier one if it was late or
lost. So a crash at any moment leaves both to choose from. Each run has a folder of its own; another run's
state is never mistaken for this one's.
"""

from __future__ import annotations

import fcntl
import re
from pathlib import Path
from types import TracebackType
from typing import Protocol

from common import tensorfile
from common.errors import StateError
from common.tensors import Flat, Layout, Purpose

_VARIATE = re.compile(r"variate-(\d{6,})\.safetensors")


class Variates(Protocol):
    """c_i of one run, by the round it came from."""

    def held_rounds(self) -> list[int]:
        """Rounds whose c_i is here."""

    def read(self, r: int, layout: Layout) -> Flat:
        """c_i as of round r; zero for r = 0."""

    def write(self, r: int, layout: Layout, flat: Flat) -> None:
        """Keeps c_i as that of round r."""

    def settle(self, counted: int) -> None:
        """Drops every c_i but the one that counts."""


class State(Protocol):
    """Where a client keeps its variates."""

    def of_run(self, run_id: str) -> Variates:
        """The variates kept for one run."""


class StateDir:
    """A client's state directory, locked while the client runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / "lock").open("w")
        except OSError as error:
            raise StateError(
                f"--state-dir {path} cannot be written: {error.strerror}; choose another"
            ) from error

    def __enter__(self) -> StateDir:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise StateError(
                f"--state-dir {self._path} is in use by another client; give each client its own --name"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()

    def of_run(self, run_id: str) -> VariateFiles:
        """The variates kept for one run."""
        return VariateFiles(self._path / f"run-{run_id}")


class VariateFiles:
    """c_i of one run in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def held_rounds(self) -> list[int]:
        """Rounds whose c_i is here."""
        if not self._folder.is_dir():  # Somebody took it away while the client runs.
            return []
        matches = (_VARIATE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def read(self, r: int, layout: Layout) -> Flat:
        """c_i as of round r; zero for r = 0."""
        return tensorfile.read(self._file(r), layout) if r else layout.allocate()

    def write(self, r: int, layout: Layout, flat: Flat) -> None:
        """Keeps c_i as that of round r."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tensorfile.write(self._file(r), layout, flat, Purpose.CLIENT_CONTROL)

    def settle(self, counted: int) -> None:
        """Drops every c_i but the one that counts."""
        for r in self.held_rounds():
            if r != counted:
                self._file(r).unlink()

    def _file(self, r: int) -> Path:
        return self._folder / f"variate-{r:06d}.safetensors"
