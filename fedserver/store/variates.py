"""Every client's variate as last counted, one file each: c_i, or FedDyn's l_i.

c moves by the differences between a client's new c_i and the one counted before; the server keeps the latter
itself, so that a client which lost its own gets it back and c stays the mean of all c_i. A new variate is
written beside the old one when its update is folded and takes its place when the round closes; the checkpoint
is synced together with it. Those that an older checkpoint may need are kept in an archive.

Where S_svr changes, a file stays as it is: it has the tensors that were in S_svr after its round. Of these
count those that have been in it ever since; the others are zero. So a change writes nothing for who was
absent.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from common.algorithms.base import Algorithm
from common.atomic import make_private
from common.errors import StateError
from common.tensors import safetensors_files
from common.tensors.layout import Flat, Layout, Purpose, norm

_FILE = re.compile(r"client-(\d{5,})-round-(\d{6,})\.safetensors")


class Variates:
    """The variates of all clients of a run."""

    def __init__(
        self,
        folder: Path,
        archive: Path,
        layout: Layout,
        algorithm: Algorithm,
        prox_weight: float,
        *,
        kept_bytes: int = 0,
    ) -> None:
        """`kept_bytes` of what is written are in memory too, and need not be read again."""
        self._folder = folder
        self._archive = archive
        self._model_layout = layout
        self._algorithm = algorithm
        self._prox_weight = prox_weight
        self.layout = algorithm.variates(layout)
        self._since: Mapping[str, int] | None = None
        """By tensor, the round at whose end it entered S_svr; None where S_svr never changes."""
        self._kept_bytes = kept_bytes
        self.counted: dict[int, int] = {}
        """Last counted round by client index; 0 for a variate that a client has started with."""
        self.norms: dict[int, float] = {}
        """||c_i|| by client index."""
        self.changed: set[int] = set()
        """Clients of whose last update not all counted: the variate here is not the one they computed."""
        self._room = kept_bytes // max(1, self.layout.num_bytes)
        self._kept: dict[Path, Flat] = {}
        """By their files; nobody writes into them."""
        self._staged: set[Path] = set()
        """What was written of the open round."""
        self._outdated: list[Path] = []
        """What is not counted any more and not in the archive yet."""
        for each in (folder, archive):
            make_private(each)

    def lay_out(self, layout: Layout, since: Mapping[str, int]) -> None:
        """From now on S_svr is that of this layout; `since` says at the end of which round a tensor came."""
        self._model_layout, self._since = layout, since
        self.layout = self._algorithm.variates(layout)
        self._room = self._kept_bytes // max(1, self.layout.num_bytes)
        self._kept.clear()

    def _read(self, path: Path, r: int) -> Flat | None:
        """A variate of round r from its file; None where it is all zero."""
        since = self._since
        if since is None:
            return safetensors_files.read(path, self.layout)
        places = [k for k, spec in enumerate(self.layout.specs) if since[spec.name] <= r]
        known, flat = Layout(self.layout.specs[k] for k in places), self.layout.allocate()
        found = safetensors_files.read(path, known, others=True) if places else flat
        for at, k in enumerate(places):
            self.layout.raw(flat, k)[:] = known.raw(found, at)
        return flat if places else None

    def require_whole(self, counted: dict[int, int]) -> None:
        """Raises unless every variate that counted after some round is here and whole."""
        if self.layout.specs:
            for i, r in counted.items():
                path = self._path(i, r)
                archived = self._archive / path.name
                self._read(archived if archived.exists() else path, r)

    def restore(self, counted: dict[int, int], norms: dict[int, float], changed: Iterable[int]) -> None:
        """Goes back to what counted after some round, and forgets what is newer."""
        self.counted, self.norms, self.changed = dict(counted), dict(norms), set(changed)
        for path, i, r in _files(self._archive):
            if self.counted.get(i) == r:
                path.replace(self._path(i, r))
        for path, i, r in _files(self._folder):
            if r < self.counted.get(i, 0):
                path.replace(self._archive / path.name)  # An older checkpoint may need it.
            elif r != self.counted.get(i):
                path.unlink()

    def norms_by_name(self, names: Mapping[int, str]) -> dict[str, float | None]:
        """||c_i|| by the name of the client, as a record has it."""
        return {names[i]: size for i, size in self.norms.items()}

    def has_lost(self, i: int, held: Container[int]) -> bool:
        """Whether a client that holds those of these rounds has not the one that counts."""
        if i not in self.counted or not self.layout.specs:
            return False
        # What a client starts with, as of round 0, it does not keep: the server has it.
        counted = self.counted[i]
        return not counted or counted not in held or i in self.changed

    def again(self, i: int) -> Flat:
        """The variate of a client that has lost it."""
        found = self.read(i)
        return self.layout.allocate() if found is None else found

    def read(self, i: int) -> Flat | None:
        """The variate of a client; None while it is still zero or where the algorithm has none."""
        if i not in self.counted or not self.layout.specs:
            return None
        path = self._path(i, self.counted[i])
        if path in self._kept:
            return self._kept[path]
        try:
            return self._read(path, self.counted[i])
        except StateError as error:
            raise StateError(f"{error}; a server that is started again goes on from before it") from error

    def stage(self, i: int, r: int, broadcast: Flat, values: Flat) -> None:
        """Writes the variate that client i has after its update for round r, which answers `broadcast`."""
        if self.layout.specs:
            sent = bool(self._model_layout.indices(Purpose.CONTROL))
            self.stage_variate(i, r, self._sent(values) if sent else self._computed(i, broadcast, values))

    def stage_variate(self, i: int, r: int, new: Flat) -> None:
        """Writes the variate that client i has after round r."""
        if self.layout.specs:
            path = self._path(i, r)
            safetensors_files.write(path, self.layout, new, Purpose.CLIENT_CONTROL, synced=False)
            self._staged.add(path)
            if path in self._kept or len(self._kept) < self._room:
                self._kept[path] = new
        self.norms[i] = self._norm(new)

    def measure_all_but(self, clients: Container[int]) -> None:
        """Takes the norms of variates anew, of which parts may not count any more."""
        for i in self.counted:
            if i not in clients:
                found = self.read(i)
                self.norms[i] = 0.0 if found is None else self._norm(found)

    def _norm(self, variate: Flat) -> float:
        return norm(self.layout.array(variate, k) for k in range(len(self.layout.specs)))

    def changed_by(self, counted: Iterable[int], clipped: Iterable[int]) -> set[int]:
        """What `changed` will be after a round."""
        return (self.changed - set(counted)) | set(clipped)

    def staged(self) -> list[Path]:
        """What is to be synced before the open round counts."""
        return [*self._staged, self._folder] if self._staged else []

    def count(self, i: int, r: int) -> None:
        """Takes note that a client's update entered round r, which counts."""
        if i in self.counted and (self.layout.specs or self._since is not None):
            self._outdated.append(self._path(i, self.counted[i]))
            self._kept.pop(self._path(i, self.counted[i]), None)
        self._staged.discard(self._path(i, r))
        self.counted[i] = r

    def prune(self, oldest: int) -> None:
        """Puts what is outdated into the archive, and drops what no checkpoint from `oldest` on can need."""
        while self._outdated:
            before = self._outdated.pop()
            if self._since is None or before.exists():  # While S_svr is empty there are no files.
                before.replace(self._archive / before.name)
        newest: dict[int, int] = {}
        for _, i, r in _files(self._archive):
            if r <= oldest:
                newest[i] = max(r, newest.get(i, 0))
        for path, i, r in _files(self._archive):
            if r < newest.get(i, 0) or self.counted.get(i, oldest + 1) <= oldest:
                path.unlink()

    def _sent(self, values: Flat) -> Flat:
        """The c_i of an update."""
        new = self.layout.allocate()
        for to, at in enumerate(self._model_layout.indices(Purpose.CONTROL)):
            self.layout.raw(new, to)[:] = self._model_layout.raw(values, at)
        return new

    def _computed(self, i: int, broadcast: Flat, values: Flat) -> Flat:
        """The variate that the client computes for itself, by the same operations in the same precision."""
        old, new = self.read(i), self.layout.allocate()
        for to, at in enumerate(self._model_layout.indices(Purpose.MODEL)):
            before = self.layout.array(new if old is None else old, to)
            x, y = (self._model_layout.array(flat, at) for flat in (broadcast, values))
            self.layout.array(new, to)[...] = self._algorithm.next_variate(
                before, None, x, y, 0.0, self._prox_weight
            )
        return new

    def _path(self, i: int, r: int) -> Path:
        return variate_path(self._folder, i, r)


def variate_path(folder: Path, i: int, r: int) -> Path:
    """Where the variate is that client i has after its update for round r, as long as it counts."""
    return folder / f"client-{i:05d}-round-{r:06d}.safetensors"


def _files(folder: Path) -> list[tuple[Path, int, int]]:
    """The variates in a folder, with client index and round."""
    matches = ((path, _FILE.fullmatch(path.name)) for path in folder.iterdir())
    return [(path, int(match[1]), int(match[2])) for path, match in matches if match]
