"""The process beside the server that has torch: it builds the model and the shards, and evaluates x.

Run as `python -m fedserver.worker FD` by `fedserver.workbench`, which speaks with it over a socket pair: a
JSON request, for an evaluation followed by the flat buffer, and a JSON reply, for a preparation followed by
x^0. It ends when the server does, whichever way that happens, because the socket then closes.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import datasets, models
from common.errors import FedError
from common.inputs import Inputs
from common.params import bind, flatten, tensor_views
from common.partition import dirichlet_partition, read_partition
from common.tensors import Flat, Layout
from fedserver.evaluate import evaluate


class Worker:
    """Holds the model and the test set of one run."""

    def prepare(self, settings: dict[str, Any]) -> tuple[dict[str, Any], Flat]:
        """Builds everything; returns what the server needs to know of it, and x^0."""
        train = datasets.load(settings["dataset"], "train")
        test = datasets.load(settings["dataset"], "test")
        spec = models.ModelSpec(
            name=settings["model"],
            num_classes=max(train.num_classes, test.num_classes),
            image_shape=train.image_shape,
            dtype=train.model_dtype,
        )
        self._model = models.build(spec, settings["seed"])
        self._test = Inputs(test)
        models.check_fit(self._model, self._test.batch(torch.arange(min(2, len(self._test))))[0], spec)
        specs = models.tensor_specs(self._model)
        self._layout = Layout(specs)
        reply = {
            "model": asdict(spec),
            "tensors": [[s.name, s.dtype, s.shape, s.purpose] for s in specs],
            "classifier": models.classifier_names(self._model),
            "shards": [shard.tolist() for shard in _shards(settings, train.labels)],
            "augment": train.augment if settings["augment"] is None else settings["augment"],
        }
        return reply, flatten(self._model, self._layout)

    def evaluate(self, flat: Flat) -> dict[str, Any]:
        """Loss and accuracy of the model with these tensors."""
        bind(self._model, tensor_views(self._layout, flat))
        return asdict(evaluate(self._model, self._test))


def _shards(settings: dict[str, Any], labels: datasets.Labels) -> list[datasets.Labels]:
    num_clients = settings["num_clients"]
    if settings["partition"] is not None:
        return read_partition(Path(settings["partition"]), num_clients, len(labels))
    return dirichlet_partition(labels, num_clients, settings["alpha"], settings["seed"])


def _model_part(layout_bytes: bytes) -> Flat:
    return np.frombuffer(bytearray(layout_bytes), np.uint8)


def main() -> None:
    """Answers requests until the server hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    server: Connection[Any, Any] = Connection(int(sys.argv[1]))
    worker = Worker()
    while True:
        try:
            request = json.loads(server.recv_bytes())
        except EOFError:
            return
        try:
            if "settings" in request:
                reply, x0 = worker.prepare(request["settings"])
                server.send_bytes(json.dumps(reply).encode())
                server.send_bytes(x0.data)
            else:
                flat = _model_part(server.recv_bytes())
                server.send_bytes(json.dumps(worker.evaluate(flat)).encode())
        except FedError as error:
            server.send_bytes(json.dumps({"error": str(error), "exit_code": error.exit_code}).encode())


if __name__ == "__main__":
    main()
