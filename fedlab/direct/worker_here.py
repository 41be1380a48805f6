"""The server's worker in its own process, with what it knows before the run begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from common.data import datasets
from common.devices.place import PROCESSOR, Place
from common.events import unheard
from common.records.conformal import ConformalRecord
from common.records.rounds import Evaluation
from common.tensors.classes import FrozenTensors
from common.tensors.layout import Flat, Layout, Purpose
from common.wire.encoding import downward
from fedserver.config import RunConfig
from fedserver.run.run import rules_of
from fedserver.worker.messages import CompareModels, Prepared, Similarity
from fedserver.worker.worker import Worker

T = TypeVar("T")


class WorkerHere:
    """Loads the data and builds the model at once, so that processes which are forked later have them."""

    def __init__(self, config: RunConfig) -> None:
        self._worker = Worker()
        self._busy = threading.Lock()
        """Held while the worker's only model has the values that a question is about."""
        self._config = config
        self._prepared = self._worker.prepare(config)
        self._classes = config.tensor_classes(
            config.algorithm, self._prepared.specs, self._prepared.classifier
        )
        self._rules = rules_of(config, 1, self._prepared.augment, 0)
        if config.image_size is not None and config.dataset != "imagefolder":
            # Clients bring their shards to the size themselves.
            datasets.load(config.dataset, "train", config.data_dir, emit=unheard)

    def move(self, place: Place) -> None:
        """Evaluates there, which nothing that is forked may have to do with."""
        if place is not PROCESSOR:
            self._worker = Worker(place)
            self._worker.prepare(self._config)

    @property
    def frozen(self) -> FrozenTensors:
        """The tensors that stay as they are."""
        frozen = self._classes.frozen
        return FrozenTensors(frozen, self._classes.picked(self._prepared.x0, frozen))

    @property
    def variates(self) -> Layout:
        """c_i, or FedDyn's l_i."""
        return self._rules.method.variates(self._classes.broadcast)

    @property
    def work(self) -> dict[int, int]:
        """What each client has to do in a round, in examples."""
        rules = self._rules
        sizes = [len(shard) for shard in self._prepared.shards]
        if self._config.local_steps is None or rules.batch_size is None:
            return dict(enumerate(sizes))
        return {i: rules.steps(size) * min(rules.batch_size, size) for i, size in enumerate(sizes)}

    @property
    def bytes_in_memory(self) -> tuple[int, int, int]:
        """Of a broadcast as it travels, of the values of an update, and of these if they are coded.

        Where S_svr changes, any parameter may have a variate some day.
        """
        layout = self._classes.broadcast
        if self._config.svr_budget:
            layout = layout.reducing({layout.specs[k].name for k in layout.indices(Purpose.MODEL)})
        up = self._rules.update_encoding(layout)
        down = downward(layout, self._config.codecs)
        return (
            down.encoded.num_bytes,
            layout.num_bytes,
            0 if up.plain else up.encoded.num_bytes,
        )

    @property
    def num_senders(self) -> int:
        """Clients that may send something in one exchange; first variates are sent by all, before round 1."""
        config = self._config
        drawn = None if config.warm_variates else config.clients_per_round
        return min(drawn or config.num_clients, config.num_clients)

    async def prepare(self, config: RunConfig) -> Prepared:
        """What is there already."""
        return self._prepared

    async def evaluate(self, flat: Flat) -> Evaluation:
        """Accuracy and loss on the test set."""
        return await asyncio.to_thread(self._alone, lambda: self._worker.evaluate(flat))

    async def conformal(self, flat: Flat, clients: Sequence[int]) -> ConformalRecord:
        """Conformal prediction sets on the test set."""
        return await asyncio.to_thread(self._alone, lambda: self._worker.conformal(flat, clients))

    async def cka(self, updates: Sequence[Path], num_images: int, estimator: str) -> Similarity:
        """Similarity of client models."""
        question = CompareModels.of(updates, num_images, estimator)
        return await asyncio.to_thread(self._alone, lambda: self._worker.cka(question))

    def _alone(self, answer: Callable[[], T]) -> T:
        with self._busy:
            return answer()

    async def rest(self) -> None:
        """There is no process to end."""
