"""Builds the model and the shards of one run, and evaluates x."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common.data import datasets
from common.data.batches import Batches
from common.data.datasets import Dataset
from common.devices.events import Computing
from common.devices.place import PROCESSOR, Place
from common.errors import ConfigError, RunError
from common.evaluate import judged, scores
from common.events import TextLog
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
    Prepared,
    Similarity,
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
        require_alike(train, test, augment)
        few = Batches(test.subset(np.arange(min(2, len(test.labels)))))
        images = few.scaled(few.images)
        first = self._build(config, spec, images)
        if config.probe:
            require_features(self._model, images, config.model)
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
        self._seed, self._test = config.seed, Batches(test, self._place, order)
        if config.cka and len(test.labels) < LEAST_CKA:
            raise ConfigError(f"--cka needs {LEAST_CKA} test images at least, got {len(test.labels)}")
        if config.calibrates_on_validation(config.validation):
            require_calibration(config, parts)
            self._held_out = HeldOut(Batches(train.subset(parts.held_out), self._place, order), parts.owners)
        if config.probe:
            pool = chosen(train.labels, parts.trained_on, config.probe, config.seed)
            classes = max(train.num_classes, test.num_classes)
            self._probe = Probe(Batches(train.subset(pool), self._place, order), classes)

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
        bind(self._model, self._own | self._place.put_all(tensor_views(self._layout, flat)))
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
