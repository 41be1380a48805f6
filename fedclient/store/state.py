"""What a client remembers on disk: its c_i, what lossy coding has left out so far, and its last update.

There is one file of c_i per round it came from, and one with the update that the server has not counted yet.
Personal tensors are in the file of c_i, so that both are always of the same round. Frozen ones have a file.

After training round r the new c_i is written as round r's beside the one before. Which of the two is valid
the server says in the next round's header: r if the update was counted, the earlier one if it was late or
lost. So a crash at any moment leaves both to choose from. Each run has a folder of its own; another run's
state is never mistaken for this one's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from common import json_files
from common.atomic import PRIVATE, make_private, sync, write_at
from common.errors import DiskError, StateError
from common.locks import lock
from common.records.client import KNOWN_RUN, OWNER, KnownRun, Owner
from common.tensors import safetensors_files
from common.tensors.classes import PERSONAL, FrozenTensors
from common.tensors.layout import Flat, Layout, Purpose
from common.wire.encoding import RESIDUAL
from fedclient.midround.file import MidRoundFile

FROZEN = "frozen.safetensors"
_VARIATE = re.compile(r"variate-(\d{6,})\.safetensors")


class StateDir:
    """A client's state directory, locked while the client runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            make_private(path)
            (path / "lock").touch(PRIVATE)
            self._lock = (path / "lock").open("w")
        except OSError as error:
            raise StateError(
                f"--state-dir {path} cannot be written: {error.strerror}; choose another"
            ) from error

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path

    def __enter__(self) -> StateDir:
        if not lock(self._lock):
            self._lock.close()
            raise StateError(
                f"--state-dir {self._path} is in use by another client; give each client its own --name"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets another client have it, unless a forked process has it open too."""
        self._lock.close()

    def of_run(self, run_id: str, client: str, fingerprint: str) -> RunFiles:
        """The files of one run; refuses those of another client or model."""
        folder = self._path / f"run-{run_id}"
        owner, path = Owner(client=client, model=fingerprint), folder / OWNER
        found = json_files.read(path, Owner, f"remove {folder}") if path.exists() else owner
        if (found.client, found.model) != (client, fingerprint):
            raise StateError(
                f"{folder} holds the state of {found.described()}, this is {owner.described()}; "
                "choose another --state-dir"
            )
        files = RunFiles(folder)
        with files.working():
            safetensors_files.drop_scratch(folder)
            json_files.write(path, owner, PRIVATE)
        return files


class RunFiles:
    """What a client remembers of one run, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._update = folder / "update.parcel"
        self.midround: MidRoundFile | None = MidRoundFile(folder / "midround.safetensors")

    def held_rounds(self) -> list[int]:
        """Rounds whose c_i is here."""
        if not self._folder.is_dir():  # Somebody took it away while the client runs.
            return []
        matches = (_VARIATE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def read(self, r: int, layout: Layout) -> Flat:
        """c_i as of round r; zero for r = 0."""
        return safetensors_files.read(self._file(r), layout) if r else layout.allocate()

    def read_last(self, r: int, layout: Layout) -> Flat:
        """The tensors that come last in the state of round r."""
        return safetensors_files.read(self._file(r), layout, others=True)

    def write(self, r: int, layout: Layout, flat: Flat) -> None:
        """Remembers c_i as that of round r.

        A c_i need not reach the disk at once: the server has it too, and what a power cut tears is known by
        its checksum. Residuals and personal tensors are nowhere else.
        """
        synced = any(spec.name.startswith((RESIDUAL, PERSONAL)) for spec in layout.specs)
        with self.working():
            safetensors_files.write(self._file(r), layout, flat, Purpose.CLIENT_CONTROL, synced=synced)

    def settle(self, counted: int) -> None:
        """Drops every c_i but the one that counts."""
        with self.working():
            for r in self.held_rounds():
                if r != counted:
                    self._file(r).unlink()

    def drop_damaged(self) -> list[str]:
        """Drops every c_i that is not as it was written; says what is wrong with each."""
        reasons = []
        with self.working():
            for r in self.held_rounds():
                try:
                    safetensors_files.require_whole(self._file(r))
                except StateError as error:
                    if isinstance(error.__cause__, OSError):
                        raise error.__cause__ from error  # What cannot be read now may still be whole.
                    reasons.append(str(error))
                    self._file(r).unlink()
        return reasons

    def store_update(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Stores an update until the next one.

        It need not reach the disk at once, nor whole: what a power cut or a kill loses or tears is recognised
        and trained again. So it is written over the last one, which the server has counted or given up: new
        blocks for as many bytes, and a new name for them, would take longer.
        But a save of the round under way is dropped, and only once it has reached the disk.
        """
        with self.working():
            file = os.open(self._update, os.O_WRONLY | os.O_CREAT, PRIVATE)
            try:
                end = 0
                for piece in pieces:
                    end = write_at(file, piece, end)
                if os.fstat(file).st_size != end:
                    os.ftruncate(file, end)
            finally:
                os.close(file)
            if self.midround is not None and self.midround.there():
                # What took long to train is not given away for what a power cut may lose.
                sync([self._update, self._folder])
                self.midround.drop()

    def stored_update(self) -> bytes | None:
        """The update that was stored."""
        with self.working():
            return self._update.read_bytes() if self._update.exists() else None

    def drop_update(self) -> None:
        """Forgets it."""
        with self.working():
            self._update.unlink(missing_ok=True)

    def keep_frozen(self, tensors: FrozenTensors) -> Flat:
        """Keeps tensors that stay as they are. What a power cut tears is asked for again."""
        with self.working():
            path = self._folder / FROZEN
            safetensors_files.write(path, tensors.layout, tensors.flat, Purpose.FROZEN, synced=False)
        return tensors.flat

    def frozen(self, layout: Layout, digest: str) -> Flat | None:
        """The tensors that were kept, if they are these."""
        try:
            found = FrozenTensors(layout, safetensors_files.read(self._folder / FROZEN, layout))
        except StateError:  # They are not here, or not whole.
            return None
        return found.flat if found.digest == digest else None

    def end(self) -> None:
        """The run is over, and nobody asks for an update or a round of it any more."""
        self.drop_update()
        if self.midround is not None:
            self.midround.drop()

    def remember(self, run: KnownRun) -> None:
        """Writes down what is trained, for later."""
        with self.working():
            json_files.write(self._folder / KNOWN_RUN, run, PRIVATE)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around work on the files: somebody may have taken the folder away, and disks get full."""
        try:
            make_private(self._folder)
            yield
        except OSError as error:
            raise DiskError(
                f"{self._folder} cannot be used: {error.strerror}; see to the disk and start the client again"
            ) from error

    def _file(self, r: int) -> Path:
        return self._folder / f"variate-{r:06d}.safetensors"
