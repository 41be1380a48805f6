"""The process beside the server that has torch: it builds the model and the shards, and evaluates x.

Run as `python -m fedserver.worker FD` by `fedserver.workbench`, which speaks with it over a socket pair: a
JSON request, for an evaluation followed by the flat buffer, and a JSON reply, for a preparation followed by
x^0. It ends when the server does, whichever way that happens, because the socket then closes.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from common import seeds
from common.data import datasets
from common.data.batches import Batches
from common.errors import ConfigError, DataError, FedError, RunError
from common.evaluate import evaluate, scores
from common.events import TextLog
from common.models.build import ModelSpec, build_model, check_fit, classifier_names, tensor_specs
from common.tensors.layout import Flat, Layout, all_finite
from common.tensors.torch_views import bind, flatten, tensor_views
from fedserver.worker.conformal import prediction_sets
from fedserver.worker.partition import class_counts, dirichlet_partition, read_partition
from fedserver.worker.similarity import MAX_CLIENTS, similarity


class Worker:
    """Holds the model and the test set of one run."""

    def prepare(self, settings: dict[str, Any]) -> tuple[dict[str, Any], Flat]:
        """Builds everything; returns what the server needs to know of it, and x^0."""
        train, test = (
            datasets.load(settings["dataset"], split, settings["data_dir"], settings["image_size"], TextLog())
            for split in ("train", "test")
        )
        spec = ModelSpec(
            name=settings["model"],
            num_classes=max(train.num_classes, test.num_classes),
            width=settings["width"],
            image_shape=train.image_shape,
            dtype=train.model_dtype,
        )
        self._model = build_model(spec, settings["seed"])
        self._test = Batches(test)
        check_fit(self._model, self._test.batch(torch.arange(min(2, len(self._test))))[0], spec)
        specs = tensor_specs(self._model)
        self._layout = Layout(specs)
        augment = train.augment if settings["augment"] is None else settings["augment"]
        _check_data(train, test, augment)
        x0 = flatten(self._model, self._layout)
        for index, tensor in enumerate(specs):
            if not all_finite(self._layout.array(x0, index), tensor.dtype):
                raise ConfigError(
                    f"{tensor.name} is not finite at the start; a constant mask belongs into a buffer with "
                    "persistent=False"
                )
        shards = _shards(settings, train.labels)
        reply = {
            "model": asdict(spec),
            "tensors": [[s.name, s.dtype, s.shape, s.purpose] for s in specs],
            "classifier": classifier_names(self._model),
            "shards": [shard.tolist() for shard in shards],
            "histograms": class_counts(shards, train.labels, spec.num_classes).tolist(),
            "class_names": max(train.class_names, test.class_names, key=len),
            "mean": train.mean,
            "std": train.std,
            "augment": augment,
        }
        return reply, x0

    def evaluate(self, flat: Flat) -> dict[str, Any]:
        """Loss and accuracy of the model with these tensors."""
        return asdict(evaluate(self._bound(flat), self._test))

    def conformal(self, flat: Flat, seed: int) -> list[dict[str, float]]:
        """Prediction sets of the same: one half of the test set calibrates, the other half tests."""
        found = scores(self._bound(flat), self._test, torch.arange(len(self._test)))
        probabilities, labels = found.double().softmax(1).numpy(), self._test.labels.numpy()
        order = seeds.stream(seed, seeds.CALIBRATION).permutation(len(labels))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        calibration, test = ((probabilities[half], labels[half]) for half in halves)
        return [asdict(sets) for sets in prediction_sets(calibration, test)]

    def cka(self, updates: list[str], num_images: int) -> dict[str, float]:
        """Similarity of client models, from the files of their updates."""
        # Mapped copy-on-write: a module in evaluation mode writes nothing, and could not.
        mapped = (np.memmap(path, np.uint8, "c") for path in updates[:MAX_CLIENTS])
        return similarity((self._bound(flat) for flat in mapped), self._test, num_images)

    def _bound(self, flat: Flat) -> nn.Module:
        bind(self._model, tensor_views(self._layout, flat))
        return self._model


def _check_data(train: datasets.Dataset, test: datasets.Dataset, augment: bool) -> None:
    if (train.image_shape, train.images.dtype) != (test.image_shape, test.images.dtype):
        raise DataError(
            f"data set {train.name}: training examples are {train.images.dtype} {train.image_shape}, "
            f"test examples {test.images.dtype} {test.image_shape}; both must be alike"
        )
    if augment and len(train.image_shape) != 3:
        raise ConfigError(f"--augment needs images of shape CxHxW, got {train.image_shape}; use --no-augment")


def _shards(settings: dict[str, Any], labels: datasets.Labels) -> list[datasets.Labels]:
    num_clients = settings["num_clients"]
    if settings["partition"] is not None:
        return read_partition(Path(settings["partition"]), num_clients, len(labels))
    return dirichlet_partition(labels, num_clients, settings["alpha"], settings["seed"])


def main() -> None:
    """Answers requests until the server hangs up, which it may do at any moment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    server: Connection[Any, Any] = Connection(int(sys.argv[1]))
    worker = Worker()
    with suppress(EOFError, ConnectionError):
        while True:
            request = json.loads(server.recv_bytes())
            flat = np.frombuffer(bytearray(server.recv_bytes()), np.uint8) if request["flat"] else None
            for part in _answer(worker, request, flat):
                server.send_bytes(part)


def _answer(worker: Worker, request: dict[str, Any], flat: Flat | None) -> list[bytes | memoryview]:
    """A reply in JSON and what comes with it; or the error."""
    more: list[memoryview] = []
    try:
        match request["ask"], flat:
            case "prepare", None:
                reply, x0 = worker.prepare(request["settings"])
                more = [x0.data]
            case "evaluate", np.ndarray():
                reply = worker.evaluate(flat)
            case "conformal", np.ndarray():
                reply = {"sets": worker.conformal(flat, request["seed"])}
            case "cka", None:
                reply = worker.cka(request["updates"], request["num_images"])
            case _:
                raise RunError(f"the worker does not know {request['ask']!r}")
        return [json.dumps(reply).encode(), *more]
    except Exception as error:
        known = error if isinstance(error, FedError) else RunError(f"the worker failed: {error!r}")
        return [json.dumps({"error": str(known), "exit_code": known.exit_code}).encode()]


if __name__ == "__main__":
    main()
