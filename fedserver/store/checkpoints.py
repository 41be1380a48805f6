"""The state of a run after each round, on disk, so that a killed server goes on where it was.

checkpoints/round-RRRRRR.safetensors holds x, the buffers, c and, for an algorithm that has one, h, with a
note: the round, the round that counts for every client, and how the round went.
It is synced together with all that it refers to: what a power cut tears before that has not counted, and is
known by its checksum.
The note grows with the number of clients, some 70 bytes each, but not with clients times tensors. The c_i are
the variates, one file per client and round. Writing the checkpoint is what makes a round count:
what else the run directory says about it can be made from it again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import numpy as np

from common.atomic import make_private
from common.errors import StateError
from common.events import Emit
from common.records import form
from common.records.base import FormError
from common.records.checkpoint import CheckpointNote
from common.records.rounds import RoundRecord
from common.records.sites import SiteCounts
from common.server_step.adaptive import Choice
from common.server_step.step import CSource
from common.tensors import safetensors_files
from common.tensors.layout import Flat, Float64, Layout, Purpose, TensorSpec
from fedserver.events.run import CheckpointUnusable

KEPT = 3
"""Checkpoints that are kept, so that there is an older one if the newest is damaged."""
_FILE = re.compile(r"round-(\d{6,})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A run after one of its rounds."""

    round: int
    flat: Flat
    """x, buffers and c."""
    h: dict[int, Float64]
    """The server's own state by tensor; empty for an algorithm that has none."""
    counted: dict[int, int]
    """The last counted round by client index."""
    norms: dict[int, float]
    """||c_i|| by client index."""
    changed: set[int]
    """Clients that have computed another c_i than the one that counts."""
    evicted: frozenset[int]
    """Members that c and h have nothing of any more."""
    strikes: dict[int, int]
    """Rounds in which updates were far too large and that are not made up for yet, by client index."""
    c_source: CSource
    total_weight: float | None
    """What all clients together weigh in c; None from a release that did not write it down."""
    closing: RoundRecord | None
    """The round's record but for the evaluation of x; None before round 1."""
    sites: dict[str, SiteCounts] = field(default_factory=dict)
    """What clients counted of the x that the round began with, by name."""
    choice: Choice | None = None
    """S_svr of the next round, which c in `flat` is of, where it changes from round to round."""


class Checkpoints:
    """The folder of checkpoints of a run."""

    lacking = 0
    """Rounds that may have a record before they have a checkpoint."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._spare = folder / "spare"
        self._model = layout
        make_private(folder)

    def _of(self, choice: Choice | None) -> Layout:
        """x, buffers and c, for a c that may be of another S_svr in each checkpoint."""
        return self._model if choice is None else self._model.reducing(choice.since)

    def _layout(self, model: Layout, has_h: bool) -> Layout:
        """The same tensors in the same places, under names that differ by purpose; then h."""
        specs = model.specs
        named = [TensorSpec(f"{s.purpose.name.lower()}/{s.name}", s.dtype, s.shape) for s in specs]
        parameters = [s for s in specs if s.purpose is Purpose.MODEL] if has_h else []
        return Layout([*named, *(TensorSpec(f"h/{s.name}", "float64", s.shape) for s in parameters)])

    def write(self, checkpoint: Checkpoint) -> list[Path]:
        """Makes a round count, once what is returned is synced with all that it refers to."""
        model = self._of(checkpoint.choice)
        layout = self._layout(model, bool(checkpoint.h))
        flat = checkpoint.flat
        if checkpoint.h:
            flat = layout.allocate()
            flat[: len(checkpoint.flat)] = checkpoint.flat
            for k, value in enumerate(checkpoint.h.values(), start=len(model.specs)):
                layout.array(flat, k).reshape(-1)[:] = value
        told = CheckpointNote(
            round=checkpoint.round,
            counted=checkpoint.counted,
            norms={**checkpoint.norms},
            changed=tuple(sorted(checkpoint.changed)),
            evicted=tuple(sorted(checkpoint.evicted)),
            strikes=checkpoint.strikes,
            shared=checkpoint.c_source is CSource.FROM_MOVE,
            total_weight=checkpoint.total_weight,
            closing=checkpoint.closing,
            has_h=bool(checkpoint.h),
            sites=checkpoint.sites or None,
            choice=checkpoint.choice,
        )
        note = {"checkpoint": form.text(told)}
        path = self._path(checkpoint.round)
        safetensors_files.write(path, layout, flat, Purpose.MODEL, note=note, synced=False, spare=self._spare)
        return [path, self._folder]

    def prune(self) -> int:
        """Drops those that need not be kept, but for a file to write over; returns the oldest left."""
        rounds = self.rounds()
        for r in rounds[:-KEPT]:
            with suppress(FileNotFoundError):  # Somebody else has dropped it.
                self._path(r).replace(self._spare)
        return rounds[-KEPT:][0]

    def drop_spare(self) -> None:
        """There are no more rounds."""
        self._spare.unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """Rounds that have a checkpoint."""
        matches = (_FILE.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def read(self, r: int) -> Checkpoint:
        """The checkpoint of a round; raises if it is damaged."""
        path, note = self._path(r), self._note(r)
        model = self._of(note.choice)
        layout = self._layout(model, note.has_h)
        flat = safetensors_files.read(path, layout)
        if note.crc32c is not None and google_crc32c.value(flat) != note.crc32c:
            raise StateError(f"{path} is damaged: its checksum is wrong")
        tensors = layout.specs[len(model.specs) :]
        keys = model.indices(Purpose.MODEL)[: len(tensors)]
        h = {
            key: np.array(layout.array(flat, len(model.specs) + k)).reshape(-1) for k, key in enumerate(keys)
        }
        return Checkpoint(
            round=r,
            flat=flat[: model.num_bytes],
            h=h,
            counted=note.counted,
            norms={i: math.inf if size is None else size for i, size in note.norms.items()},
            changed=set(note.changed),
            evicted=frozenset(note.evicted),
            strikes=note.strikes,
            c_source=CSource.FROM_MOVE if note.shared else CSource.FROM_VARIATES,
            total_weight=note.total_weight,
            closing=note.closing,
            sites=note.sites or {},
            choice=note.choice,
        )

    def closing(self, r: int) -> RoundRecord | None:
        """The record of a round, from its checkpoint; None if it is that before round 1."""
        return self._note(r).closing

    def _note(self, r: int) -> CheckpointNote:
        path = self._path(r)
        try:
            note = form.read(CheckpointNote, json.loads(safetensors_files.read_note(path)["checkpoint"]))
        except FormError as error:
            raise StateError(f"{path} is not a checkpoint of this run: in its note, {error}") from error
        except (KeyError, ValueError, RecursionError) as error:
            raise StateError(f"{path} is not a checkpoint of this run: {error!r}") from error
        if note.round != r:
            raise StateError(f"{path} is not a checkpoint of round {r}: its note says round {note.round}")
        return note

    def newest(self, require_usable: Callable[[Checkpoint], None], emit: Emit) -> Checkpoint | None:
        """The newest one that is whole and that `require_usable` does not raise for; None if there is none.

        Nothing on disk is changed.
        """
        rounds = self.rounds()
        for r in reversed(rounds):
            try:
                checkpoint = self.read(r)
                require_usable(checkpoint)
            except StateError as error:
                emit(CheckpointUnusable(reason=str(error)))
                continue
            return checkpoint
        if rounds:
            raise StateError(
                f"{self._folder}: none of {len(rounds)} checkpoints can be used; "
                "start anew in another --run-dir"
            )
        return None

    def drop_after(self, r: int) -> None:
        """Removes what is newer than the checkpoint that the run goes on from."""
        for later in self.rounds():
            if later > r:
                self._path(later).unlink(missing_ok=True)

    def _path(self, r: int) -> Path:
        return self._folder / f"round-{r:06d}.safetensors"


class LateCheckpoints(Checkpoints):
    """Written while the next round goes on, for a simulation: after a kill it does one round more again."""

    lacking = 1

    def __init__(self, folder: Path, layout: Layout) -> None:
        super().__init__(folder, layout)
        self._late: Checkpoint | None = None

    def write(self, checkpoint: Checkpoint) -> list[Path]:
        """Takes note of what is to be written."""
        self._late = checkpoint
        return []

    def prune(self) -> int:
        """Writes first."""
        late, self._late = self._late, None
        if late is not None:
            super().write(late)
        return super().prune()
