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
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.data import datasets
from common.data.batches import Batches
from common.data.datasets import Dataset
from common.errors import ConfigError, FedError, RunError
from common.evaluate import judged, scores
from common.events import TextLog
from common.installation import extras
from common.models.build import build_model, check_fit, classifier_names, tensor_specs
from common.models.memory_format import memory_format
from common.models.spec import ModelSpec
from common.records.conformal import ConformalRecord
from common.records.rounds import Evaluation
from common.tensors.layout import Flat, Layout, all_finite
from common.tensors.torch_views import bind, flatten, tensor_views
from fedserver.config import RunConfig
from fedserver.tensors.init_file import read_init
from fedserver.worker.analyses.calibration import HeldOut, conformal
from fedserver.worker.analyses.probe import Probe, chosen, require_features
from fedserver.worker.analyses.settings import LEAST_CKA
from fedserver.worker.analyses.similarity import similarity
from fedserver.worker.messages import (
    CompareModels,
    Failure,
    Prepared,
    Reply,
    Request,
    Similarity,
    encoded,
    request_of,
)
from fedserver.worker.partition import class_counts
from fedserver.worker.task_run import of_task, task_model
from fedserver.worker.training_data import Shares, require_alike, require_calibration, shards_of, shares


class Worker:
    """Holds the model and the test set of one run."""

    _test: Batches | None = None
    """None where all data are at the clients, or tensors that no evaluation at the server can do without."""
    _held_out: HeldOut | None = None
    _probe: Probe | None = None
    _scored: tuple[bytes, Tensor] | None = None

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
        require_alike(train, test, augment)
        few = Batches(test.subset(np.arange(min(2, len(test.labels)))))
        first = self._build(config, spec, few.scaled(few.images))
        shards = shards_of(config, train.labels)
        if not config.personal:
            self._keep(config, train, test, shares(config, shards))
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

    def _keep(self, config: RunConfig, train: Dataset, test: Dataset, parts: Shares) -> None:
        """Keeps what x will be evaluated on, and no more of the training split than that needs."""
        order = memory_format(self._model, test.image_shape)
        self._seed, self._test = config.seed, Batches(test, memory_format=order)
        if config.cka and len(test.labels) < LEAST_CKA:
            raise ConfigError(f"--cka needs {LEAST_CKA} test images at least, got {len(test.labels)}")
        if config.calibrates_on_validation(config.validation):
            require_calibration(config, parts)
            self._held_out = HeldOut(Batches(train.subset(parts.held_out), memory_format=order), parts.owners)
        if config.probe:
            require_features(
                self._model, self._test.batch(torch.arange(min(2, len(test.labels))))[0], config.model
            )
            pool = chosen(train.labels, parts.trained_on, config.probe, config.seed)
            classes = max(train.num_classes, test.num_classes)
            self._probe = Probe(Batches(train.subset(pool), memory_format=order), classes)

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
        self._own = {name: view for name, view in tensor_views(whole, x0).items() if name not in shared}
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
        if self._probe is None:
            return judged(self._scores(flat, test), test.labels)
        found, accuracy = self._probe.judged(self._bound(flat), test)
        self._scored = _digest(flat), found
        return replace(judged(found, test.labels), probe_accuracy=accuracy)

    def conformal(self, flat: Flat, clients: Sequence[int]) -> ConformalRecord:
        """Prediction sets of the same, none without a test set; `clients` are those with a shard."""
        test = self._test
        if test is None:
            return ConformalRecord(sets=())
        found = self._scores(flat, test)
        score = partial(scores, self._bound(flat))
        return conformal(score, test, found, self._held_out, clients, self._seed)

    def cka(self, question: CompareModels) -> Similarity:
        """Similarity of client models, from the files of their updates."""
        # Mapped copy-on-write: a module in evaluation mode writes nothing, and could not.
        mapped = [np.memmap(path, np.uint8, "c") for path in question.updates]
        return similarity(
            lambda: map(self._bound, mapped), self._own_data(), question.num_images, question.estimator
        )

    def _scores(self, flat: Flat, test: Batches) -> Tensor:
        """Of the whole test set; the last ones are kept, because the last x is asked for twice."""
        digest = _digest(flat)
        if self._scored is None or self._scored[0] != digest:
            self._scored = digest, scores(self._bound(flat), test, torch.arange(len(test)))
        return self._scored[1]

    def _own_data(self) -> Batches:
        if self._test is None:
            raise RunError("this server has no data to evaluate a model on")
        return self._test

    def _bound(self, flat: Flat) -> nn.Module:
        bind(self._model, self._own | tensor_views(self._layout, flat))
        return self._model


def _digest(flat: Flat) -> bytes:
    return hashlib.sha256(flat.data).digest()


def _require_finite(layout: Layout, x0: Flat) -> None:
    for index, tensor in enumerate(layout.specs):
        if not all_finite(layout.array(x0, index), tensor.dtype):
            raise ConfigError(
                f"{tensor.name} is not finite at the start; a constant mask belongs into a buffer with "
                "persistent=False"
            )


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
            prepared = worker.prepare(request.prepare)
            return [encoded(Reply(built=prepared.built())), prepared.x0.data]
        if request.cka is not None:
            return [encoded(Reply(similarity=worker.cka(request.cka)))]
        if request.conformal is not None and flat is not None:
            return [encoded(Reply(conformal=worker.conformal(flat, request.conformal)))]
        if request.evaluate and flat is not None:
            return [encoded(Reply(evaluation=worker.evaluate(flat)))]
        raise RunError(f"the worker does not know {request}")
    except Exception as error:
        absent = extras.missing(error) if isinstance(error, ModuleNotFoundError) else None
        known = error if isinstance(error, FedError) else absent or RunError(f"the worker failed: {error!r}")
        return [encoded(Reply(failure=Failure(error=str(known), exit_code=known.exit_code)))]


if __name__ == "__main__":
    main()
