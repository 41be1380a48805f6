"""Saves where a client is inside a round, and goes on from there.

A save has y_i and the buffers, momentum, the sum of the losses, the state of torch's generator, and the
number of steps. The batches and the crops of a round follow from seed, round and client, so they are drawn
again. Nothing is written of a round that is over before the first save is due.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from common.devices.place import PROCESSOR, Place
from common.errors import StateError
from common.events import Emit
from common.tensors.layout import Flat, Layout, TensorSpec, fingerprint
from common.tensors.torch_views import tensor_views
from fedclient.midround.events import SaveDamaged, SaveFailed, SaveStale, TrainingResumed
from fedclient.midround.file import MidRoundFile
from fedclient.training.task import Task

EPOCH_S = 10.0
"""The end of an epoch is a place to save only this long after the last save or the round's start."""
_RANDOM = "random/"
"""Before the name of a generator."""


class Saving:
    """When and where a client saves, for all rounds of a run."""

    def __init__(
        self,
        file: MidRoundFile,
        run_id: str,
        every_s: float,
        emit: Emit,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file = file
        self.run_id = run_id
        self.every_s = every_s
        self.emit = emit
        self.now = now


class UnderWay:
    """One round that is being trained."""

    def __init__(
        self,
        saving: Saving,
        r: int,
        work: tuple[int, int],
        owner: Callable[[], str],
        live: Callable[[], Mapping[str, Tensor]],
        place: Place = PROCESSOR,
    ) -> None:
        """`work`: steps of the round, and of an epoch. `live`: the tensors of the moment, at their place."""
        self._saving = saving
        self._round = r
        self._steps, self._per_epoch = work
        self._owner = owner
        self._live = live
        self._place = place
        self._name = ""
        self._last = saving.now()

    def resumed(self) -> int:
        """The steps that are done: those of a save of this very round, whose tensors are restored."""
        file, emit = self._saving.file, self._saving.emit
        if not file.there():
            return 0
        try:
            found = file.read(self._layout(), self._belongs_to())
            if found is None:
                emit(SaveStale(round=self._round))
        except StateError as error:
            found = None
            emit(SaveDamaged(round=self._round, reason=str(error)))
        if found is None or not 0 < found[0] < self._steps:
            file.drop()
            return 0
        self._restore(found[1])
        emit(TrainingResumed(round=self._round, step=found[0], steps=self._steps))
        return found[0]

    def made(self, step: int) -> None:
        """A step is made; saves where it is time for it, but not after the last step."""
        saving, passed = self._saving, self._saving.now() - self._last
        pause_s = min(saving.every_s, EPOCH_S) if step % self._per_epoch == 0 else saving.every_s
        if passed < pause_s or step == self._steps:
            return
        try:
            self._save(step)
        except (OSError, StateError) as error:
            saving.emit(SaveFailed(round=self._round, step=step, reason=str(error)))
        self._last = saving.now()

    def _save(self, step: int) -> None:
        layout = self._layout()
        flat = layout.allocate()
        tensors = self._tensors()
        for name, view in tensor_views(layout, flat).items():
            view.copy_(tensors[name])
        self._saving.file.write(layout, flat, self._belongs_to(), step)

    def _restore(self, flat: Flat) -> None:
        saved = tensor_views(self._layout(), flat)
        for name, tensor in self._live().items():
            tensor.copy_(saved[name])
        states = {name.removeprefix(_RANDOM): saved[name] for name in saved if name.startswith(_RANDOM)}
        self._place.restore_random(states)

    def _layout(self) -> Layout:
        return Layout(
            TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in self._tensors().items()
        )

    def _tensors(self) -> dict[str, Tensor]:
        states = self._place.random_states()
        return {**self._live(), **{_RANDOM + name: state for name, state in states.items()}}

    def _belongs_to(self) -> str:
        """Computed once, and only where there is something to save or to compare it with."""
        self._name = self._name or self._owner()
        return self._name


def round_name(
    run_id: str, seed: int, index: int, task: Task, state: Flat, labels: Tensor, place: Place = PROCESSOR
) -> str:
    """Alike for the same run, client, round, rules, x, c, c_i, examples, torch and arithmetic; else not."""
    said = (run_id, seed, index, torch.__version__, task.rules, fingerprint(task.layout.specs))
    arithmetic = () if place.is_plain else (place.device.type, place.autocast)
    digest = hashlib.sha256(repr(said + arithmetic).encode())
    for part in (task.broadcast, state, labels.numpy()):
        digest.update(part.tobytes() if not part.flags.c_contiguous else part.data)
    return digest.hexdigest()
