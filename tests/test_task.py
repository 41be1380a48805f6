"""A server without data: the task says what the data are like, and every client brings its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from common.algorithms import ALGORITHMS
from common.data import datasets
from common.data.partition_file import write_partition
from common.errors import ConfigError
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.worker.partition import dirichlet_partition
from tests.processes import Federation

TASK: dict[str, Any] = {"dataset": "none", "input_shape": "3x8x8", "classes": ("a", "b")}
DIGITS = """
input_shape = "1x8x8"
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
mean = [0.2874]
std = [0.3538]
model = "cnn"
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_shape": "3x"}, "--input-shape must be numbers with x between them"),
        ({"input_shape": "0x8"}, "--input-shape must be numbers with x between them"),
        ({"input_shape": "3x99999x99999"}, "--input-shape must have at most"),
        ({"classes": ()}, "--classes must name 2 to"),
        ({"classes": ("a", "a")}, "--classes must name 2 to"),
        ({"mean": (0.5, 0.5)}, "--mean must have one number, or one for each of 3 channels"),
        ({"std": (0.0,)}, "--std finite and positive"),
        ({"dataset": "digits"}, "exclude each other"),
        ({"cka": 10}, "--cka needs data at the server"),
        ({"image_size": 10}, "--image-size needs data at the server"),
        ({"input_shape": None}, "give --input-shape too"),
        ({"input_shape": None, "classes": ()}, "give --task FILE.toml"),
    ],
)
def test_a_task_that_is_not_whole_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**(TASK | changes))


def test_a_simulation_takes_no_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --dataset instead of a task"):
        simulate(RunConfig(**TASK), tmp_path / "run", lambda line: None)


@pytest.mark.parametrize(
    "algorithm",
    ["fedpvr", *(pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS if name != "fedpvr")],
)
def test_a_task_whose_clients_bring_the_shards_ends_in_the_same_bits(
    federation: Federation, algorithm: str
) -> None:
    settings: dict[str, Any] = {"algorithm": algorithm, "num_clients": 2, "rounds": 2, "local_steps": 3}
    simulate(RunConfig(**settings), federation.folder / "with-data", lambda line: None)
    labels = datasets.load("digits", "train").labels
    write_partition(federation.folder / "shards.json", dirichlet_partition(labels, 2, 0.5, 0))
    (federation.folder / "task.toml").write_text(DIGITS)
    flags = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    federation.server("--task", "task.toml", *flags)
    tested = 1 if algorithm == "fedpvr" else 0
    for i in range(2):
        bring = ["--dataset", "digits", "--shard", f"{i}/2", "--partition", "shards.json"]
        # One of them evaluates, on all of the test set, for one algorithm.
        federation.client(f"client-{i}", *bring, *(["--test", "digits"] if i < tested else []))
    federation.finish()
    for file in ("model.safetensors", "control.safetensors"):
        ours, theirs = (
            load_file(folder / file)
            for folder in (federation.folder / "run", federation.folder / "with-data")
        )
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            np.testing.assert_array_equal(tensor, theirs[name])
    with_data = (federation.folder / "with-data" / "rounds.jsonl").read_text().splitlines()
    accuracies = [json.loads(line)["accuracy"] if tested else None for line in with_data]
    assert [record["accuracy"] for record in federation.rounds()] == accuracies
    assert json.loads((federation.folder / "run" / "config.json").read_text())["dataset"] == "none"


def pictures(folder: Path, *classes: str) -> None:
    """A site's own pictures, a few of each class, dark or bright."""
    random = np.random.default_rng(len(classes))
    for name in classes:
        (folder / name).mkdir(parents=True)
        for k in range(6):
            pixels = random.integers(0, 80, (8, 8, 3)) + (120 if name == "bright" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{k}.png")


def test_a_client_without_data_or_with_a_strange_class_is_told_so(federation: Federation) -> None:
    pictures(federation.folder / "c", "green")
    federation.server(
        "--input-shape", "3x8x8", "--classes", "dark", "--classes", "bright", "--num-clients", "1"
    )
    federation.client("a")
    federation.wait_for("a", "this server has none; start the client with --data or --dataset")
    federation.client("c", "--data", "c")
    federation.wait_for("c", "has class 'green', the run has dark, bright; all of the client's are green")
    assert federation.exit_code("a") != 0
    assert federation.exit_code("c") != 0
