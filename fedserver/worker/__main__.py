"""The process beside the server that has torch: it builds the model and the shards, and evaluates x.

Started by `fedserver.worker.process`, which speaks with it over a socket pair in the words of
`fedserver.worker.messages`: a request, for an evaluation followed by the flat buffer, and a reply, for a
preparation followed by x^0. It ends when the server does, whichever way that happens, because the socket then
closes; `fedserver.worker.lifeline` sees to it from the first moment on.
"""

from __future__ import annotations

import hashlib
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common import seeds
from common.data import datasets
from common.data.batches import Batches
from common.data.partition_file import read_partition
from common.devices.choice import placed
from common.devices.events import Computing
from common.devices.place import PROCESSOR, Place
from common.errors import ConfigError, DataError, FedError, RunError
from common.evaluate import judged, scores
from common.events import TextLog
from common.installation import extras
from common.models.build import build_model, check_fit, classifier_names, tensor_specs
from common.models.memory_format import memory_format
from common.models.spec import ModelSpec
from common.records.conformal import PredictionSets
from common.records.rounds import Evaluation
from common.tensors.layout import Flat, Layout, all_finite
from common.tensors.torch_views import bind, flatten, tensor_views
from fedserver.config import RunConfig
from fedserver.tensors.init_file import read_init
from fedserver.worker.conformal import prediction_sets
from fedserver.worker.messages import Failure, Prepared, Reply, Request, Similarity, encoded, request_of
from fedserver.worker.partition import class_counts, dirichlet_partition
from fedserver.worker.similarity import MAX_CLIENTS, similarity
from fedserver.worker.task_run import of_task, require_images, task_model


class Worker:
    """Holds the model and the test set of one run."""

    _test: Batches | None = None
    """None where all data are at the clients, or tensors that no evaluation at the server can do without."""
    _scored: tuple[bytes, Tensor] | None = None

    def __init__(self, place: Place = PROCESSOR) -> None:
        self._place = place

    def move(self, place: Place) -> None:
        """Evaluates there what is prepared from now on."""
        self._place = place
        if not place.is_plain:
            TextLog()(Computing(device=str(place.device), autocast=place.autocast))

    def prepare(self, config: RunConfig) -> Prepared:
        """Builds everything that the server needs before clients can join."""
        if config.has_task:
            return self._prepare_task(config)
        train, test = (
            datasets.load(config.dataset, split, config.data_dir, config.image_size, TextLog())
            for split in ("train", "test")
        )
        spec = ModelSpec(
            name=config.model,
            num_classes=max(train.num_classes, test.num_classes),
            width=config.width,
            image_shape=train.image_shape,
            dtype=train.model_dtype,
        )
        augment = train.augment if config.augment is None else config.augment
        _check_data(train, test, augment)
        few = Batches(test.subset(np.arange(min(2, len(test.labels)))))
        first = self._build(config, spec, few.scaled(few.images))
        if not config.personal:
            self._test = Batches(test, self._place, memory_format(self._model, test.image_shape))
        shards = _shards(config, train.labels)
        histograms = class_counts(shards, train.labels, spec.num_classes).tolist()
        return Prepared(
            **first,
            class_names=max(tuple(train.class_names), tuple(test.class_names), key=len),
            mean=tuple(train.mean),
            std=tuple(train.std),
            shards=tuple(tuple(shard.tolist()) for shard in shards),
            histograms=tuple(map(tuple, histograms)),
            augment=augment,
        )

    def _prepare_task(self, config: RunConfig) -> Prepared:
        """The same where all data are at the clients."""
        spec = task_model(config)
        batch = torch.zeros(2, *spec.image_shape, dtype=getattr(torch, spec.dtype))
        return Prepared(**self._build(config, spec, batch), **of_task(config))

    def _build(self, config: RunConfig, spec: ModelSpec, batch: Tensor) -> dict[str, Any]:
        """Builds the model, which must take such a batch; returns all that is known of it."""
        self._model = build_model(spec, config.seed)
        check_fit(self._model, batch, spec)
        specs, classifier = tensor_specs(self._model), tuple(classifier_names(self._model))
        whole = Layout(specs)
        x0 = flatten(self._model, whole)
        _require_finite(whole, x0)
        digest = told = ""
        if config.init is not None:
            file = read_init(config.init)
            digest = file.digest
            x0, told = file.values(specs, x0 if config.init_missing == "keep" else None)
        self._layout = config.tensor_classes(config.algorithm, specs, classifier).shared
        shared = {spec.name for spec in self._layout.specs}
        own = {name: view for name, view in tensor_views(whole, x0).items() if name not in shared}
        self._own = self._place.put_all(own)
        self._place.settle(self._model)
        return {
            "model": spec,
            "specs": whole.specs,
            "classifier": classifier,
            "x0": x0,
            "init_digest": digest,
            "init_told": told,
        }

    def evaluate(self, flat: Flat) -> Evaluation:
        """Loss and accuracy of the model with these tensors."""
        test = self._own_data()
        return judged(self._scores(flat, test), test.labels)

    def conformal(self, flat: Flat, seed: int) -> tuple[PredictionSets, ...]:
        """Prediction sets of the same: one half of the test set calibrates, the other half tests.

        There are none without a test set.
        """
        test = self._test
        if test is None:
            return ()
        found = self._scores(flat, test)
        probabilities, labels = found.double().softmax(1).numpy(), test.labels.numpy()
        order = seeds.stream(seed, seeds.CALIBRATION).permutation(len(labels))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        calibration, rest = ((probabilities[half], labels[half]) for half in halves)
        return prediction_sets(calibration, rest)

    def cka(self, updates: Sequence[str], num_images: int) -> Similarity:
        """Similarity of client models, from the files of their updates."""
        # Mapped copy-on-write: a module in evaluation mode writes nothing, and could not.
        mapped = (np.memmap(path, np.uint8, "c") for path in updates[:MAX_CLIENTS])
        return {**similarity((self._bound(flat) for flat in mapped), self._own_data(), num_images)}

    def _scores(self, flat: Flat, test: Batches) -> Tensor:
        """Of the whole test set; the last ones are kept, because the last x is asked for twice."""
        digest = hashlib.sha256(flat.data).digest()
        if self._scored is None or self._scored[0] != digest:
            self._scored = digest, scores(self._bound(flat), test, torch.arange(len(test)))
        return self._scored[1]

    def _own_data(self) -> Batches:
        if self._test is None:
            raise RunError("this server has no data to evaluate a model on")
        return self._test

    def _bound(self, flat: Flat) -> nn.Module:
        bind(self._model, self._own | self._place.put_all(tensor_views(self._layout, flat)))
        return self._model


def _check_data(train: datasets.Dataset, test: datasets.Dataset, augment: bool) -> None:
    if (train.image_shape, train.images.dtype) != (test.image_shape, test.images.dtype):
        raise DataError(
            f"data set {train.name}: training examples are {train.images.dtype} {train.image_shape}, "
            f"test examples {test.images.dtype} {test.image_shape}; both must be alike"
        )
    require_images(train.image_shape, augment)


def _require_finite(layout: Layout, x0: Flat) -> None:
    for index, tensor in enumerate(layout.specs):
        if not all_finite(layout.array(x0, index), tensor.dtype):
            raise ConfigError(
                f"{tensor.name} is not finite at the start; a constant mask belongs into a buffer with "
                "persistent=False"
            )


def _shards(config: RunConfig, labels: datasets.Labels) -> list[datasets.Labels]:
    if config.partition is not None:
        return read_partition(Path(config.partition), config.num_clients, len(labels))
    return dirichlet_partition(labels, config.num_clients, config.alpha, config.seed)


def main() -> None:
    """Answers requests until the server hangs up, which it may do at any moment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    server: Connection[Any, Any] = Connection(int(sys.argv[1]))
    worker = Worker()
    with suppress(EOFError, ConnectionError):
        while True:
            request = request_of(server.recv_bytes())
            flat = np.frombuffer(bytearray(server.recv_bytes()), np.uint8) if request.flat else None
            for part in _answer(worker, request, flat):
                server.send_bytes(part)


def _answer(worker: Worker, request: Request, flat: Flat | None) -> list[bytes | memoryview]:
    """A reply and what comes with it; or the error."""
    try:
        if request.prepare is not None:
            worker.move(placed(request.device))
            prepared = worker.prepare(request.prepare)
            return [encoded(Reply(built=prepared.built())), prepared.x0.data]
        if request.cka is not None:
            return [encoded(Reply(similarity=worker.cka(request.cka.updates, request.cka.num_images)))]
        if request.conformal is not None and flat is not None:
            return [encoded(Reply(sets=worker.conformal(flat, request.conformal)))]
        if request.evaluate and flat is not None:
            return [encoded(Reply(evaluation=worker.evaluate(flat)))]
        raise RunError(f"the worker does not know {request}")
    except Exception as error:
        absent = extras.missing(error) if isinstance(error, ModuleNotFoundError) else None
        known = error if isinstance(error, FedError) else absent or RunError(f"the worker failed: {error!r}")
        return [encoded(Reply(failure=Failure(error=str(known), exit_code=known.exit_code)))]


if __name__ == "__main__":
    main()
