"""FedAvg of Flower over a model of given shapes; a line of JSON with the time of every round's end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class TimedFedAvg(FedAvg):
    """Notes when each round has been aggregated."""

    def __init__(self, log: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self._log = log

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model."""
        found = list(replies)
        result = super().aggregate_train(server_round, found)
        updates = sum(not message.has_error() for message in found)
        line = json.dumps({"round": server_round, "updates": updates, "time": time.time()})
        with self._log.open("a") as file:
            print(line, file=file, flush=True)
        return result


def train(grid: Grid, shapes: Path, clients: int, rounds: int, log: Path) -> None:
    """All rounds."""
    # Drawn at random: two arrays with the same content would be sent once.
    random = np.random.default_rng(0)
    arrays = {
        name: Array(random.standard_normal(shape, dtype=np.float32))
        for name, shape in json.loads(shapes.read_text()).items()
    }
    strategy = TimedFedAvg(log, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy.start(grid, ArrayRecord(arrays), num_rounds=rounds, timeout=600)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """With what `flwr run` was told."""
    config = context.run_config
    train(
        grid,
        Path(str(config["shapes"])),
        int(config["clients"]),
        int(config["rounds"]),
        Path(str(config["log"])),
    )
