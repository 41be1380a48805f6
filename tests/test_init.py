"""A run that starts from a file, and a server that needs no torch for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from common.data import datasets
from common.data.partition_file import write_partition
from common.data.torchvision_import import torchvision_datasets
from common.errors import ConfigError
from common.events import unheard
from common.models.build import build_model, tensor_specs
from common.models.spec import ModelSpec
from common.tensors.layout import Layout
from common.tensors.torch_views import flatten
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.tensors.init_file import read_init
from fedserver.worker.partition import dirichlet_partition
from fedserver.worker.task_run import needs_torch
from tests.processes import Federation
from tests.test_cli import invoke

SETTINGS: dict[str, Any] = {"num_clients": 2, "rounds": 2, "local_steps": 2, "batch_size": 8}
TASK: dict[str, Any] = {
    "dataset": "none",
    "input_shape": "1x8x8",
    "classes": tuple("0123456789"),
    "mean": (0.2874,),
    "std": (0.3538,),
}


def exported(folder: Path, *flags: str, name: str = "cnn") -> Path:
    """A file of `fedlab model --export`."""
    path = folder / f"{name}.safetensors"
    result = invoke("fedlab", "model", name, "--export", str(path), *flags)
    assert result.exit_code == 0, result.output
    return path


def model_of(folder: Path, **settings: Any) -> dict[str, Any]:
    """x after a simulation."""
    simulate(RunConfig(**SETTINGS, **settings), folder, unheard)
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    return tensors


def flags_of(settings: dict[str, Any]) -> list[str]:
    """The same on a command line."""
    found = []
    for name, value in settings.items():
        for each in value if isinstance(value, tuple) else (value,):
            found += ["--" + name.replace("_", "-"), str(each)]
    return found


def test_a_run_from_an_exported_model_is_the_run_of_its_seed(tmp_path: Path) -> None:
    file = exported(tmp_path, "--seed", "3")
    ours = model_of(tmp_path / "init", seed=3, init=str(file))
    theirs = model_of(tmp_path / "seeded", seed=3)
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor)
    frozen = model_of(tmp_path / "other", seed=4, init=str(file), freeze=("features.0",))
    np.testing.assert_array_equal(frozen["features.0.weight"], load_file(file)["features.0.weight"])


def test_what_a_file_has_not_is_named_and_may_be_kept_from_the_seed(tmp_path: Path) -> None:
    tensors = load_file(exported(tmp_path, "--num-classes", "1000", "--seed", "9"))
    del tensors["features.0.bias"]
    path = tmp_path / "trunk.safetensors"
    save_file(tensors | {"fc.weight": np.zeros(3, np.float32)}, path)
    network = build_model(ModelSpec(name="cnn", num_classes=10, image_shape=(1, 8, 8)), 0)
    specs = tensor_specs(network)
    file = read_init(str(path))
    with pytest.raises(ConfigError) as caught:
        file.values(specs, None)
    for words in (
        "missing: features.0.bias;",
        "of another shape or type: classifier.weight (float32 (1000, 64) for float32 (10, 64)), classifier.b",
        "unexpected: fc.weight; --init-missing keep takes what fits",
    ):
        assert words in str(caught.value)
    layout = Layout(specs)
    seeded = flatten(network, layout)
    flat, told = file.values(specs, seeded)
    assert "missing: features.0.bias" in told
    for k, spec in enumerate(specs):
        kept = spec.name.startswith("classifier.") or spec.name == "features.0.bias"
        expected = layout.array(seeded, k) if kept else tensors[spec.name]
        np.testing.assert_array_equal(layout.array(flat, k), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1] + b"x", "is damaged: its checksum is wrong"),
        (lambda data: data[: len(data) // 2], "is not a safetensors file"),
        (lambda data: b"no tensors at all", "is not a safetensors file"),
        (lambda data: data.replace(b"features.0.bias", b"features.9.bias", 1), "describes|wrong"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = exported(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError, match=message):
        read_init(str(path))


def test_a_file_that_is_not_finite_or_fits_nowhere_is_refused(tmp_path: Path) -> None:
    specs = tensor_specs(build_model(ModelSpec(name="cnn", num_classes=10, image_shape=(1, 8, 8)), 0))
    path = tmp_path / "x.safetensors"
    tensors = load_file(exported(tmp_path))
    tensors["classifier.bias"][0] = np.nan
    save_file(tensors, path)
    with pytest.raises(ConfigError, match=r"classifier\.bias is not finite"):
        read_init(str(path)).values(specs, None)
    save_file({"a": np.zeros(3)}, path)
    with pytest.raises(ConfigError, match="has no tensor that fits the model"):
        read_init(str(path)).values(specs, Layout(specs).allocate())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": "nowhere.safetensors"}, "--init nowhere.safetensors: no such file"),
        ({"init_missing": "keep"}, "--init-missing keep goes with --init FILE"),
        ({"personal": ("classifier",), "cka": 10}, "--cka compares whole models"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dataset": "digits", "input_shape": None, "classes": (), "mean": (), "std": ()},
            "give --task FILE",
        ),
        ({"init": None}, "give --init FILE, written by fedlab model --export"),
        ({"width": 0.5}, "is of another model: width is 1.0, the run's 0.5"),
        ({}, ""),
    ],
)
def test_why_a_run_needs_torch_at_the_server_is_said(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = RunConfig(**(TASK | {"init": str(exported(tmp_path))} | changes))
    found = needs_torch(config)
    assert message in found
    assert bool(found) == bool(message)


def without_torch(federation: Federation, *flags: str) -> None:
    """Starts a server in whose processes torch cannot be imported."""
    stub = federation.folder / "stub"
    stub.mkdir(exist_ok=True)
    (stub / "torch.py").write_text('raise ImportError("there is no torch here")\n')
    command = [
        sys.executable,
        "-m",
        "fedserver",
        "run",
        "--listen",
        "127.0.0.1:0",
        "--run-dir",
        "run",
        *flags,
    ]
    with (federation.folder / "server.log").open("wb") as log:
        federation.processes["server"] = subprocess.Popen(
            command,
            cwd=federation.folder,
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(stub)},
        )


def test_a_server_without_torch_trains_the_same_model_and_refuses_another_file(
    federation: Federation,
) -> None:
    file = exported(federation.folder, "--seed", "3")
    simulate(RunConfig(**SETTINGS, seed=3), federation.folder / "with-data", unheard)
    settings = flags_of({k: v for k, v in TASK.items() if k != "dataset"} | SETTINGS | {"init": file.name})
    labels = datasets.load("digits", "train").labels
    write_partition(federation.folder / "shards.json", dirichlet_partition(labels, 2, 0.5, 3))
    without_torch(federation, *settings, "--seed", "3")
    federation.address = federation.wait_for("server", r"listening on (\S+)")
    for i in range(2):
        bring = ["--dataset", "digits", "--shard", f"{i}/2", "--partition", "shards.json"]
        federation.client(f"client-{i}", *bring)
    federation.finish()
    ours, theirs = (
        load_file(federation.folder / folder / "model.safetensors") for folder in ("run", "with-data")
    )
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor)
    exported(federation.folder, "--seed", "5")
    without_torch(federation, *settings, "--seed", "3")
    assert federation.exit_code("server") == 2
    assert "holds a run of another --init file" in federation.log("server")


def test_a_server_without_torch_that_needs_it_says_in_one_line_what_to_give(federation: Federation) -> None:
    without_torch(federation, "--num-clients", "1")
    assert federation.exit_code("server") == 2
    *_, last = federation.log("server").splitlines()
    assert last == (
        "Error: this run needs torch at the server, which fails to import (there is no torch here): "
        "--dataset digits is loaded and evaluated with it; give --task FILE.toml instead"
    )
    assert "Traceback" not in federation.log("server")


@pytest.mark.slow
def test_a_model_of_torchvision_is_exported_without_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchvision_datasets()  # Makes torchvision fit for import.
    from torchvision.models import squeezenet1_1

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    path = tmp_path / "squeezenet1_1.safetensors"
    command = ["fedlab", "model", "squeezenet1_1", "--num-classes", "7", "--export", str(path)]
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert "from seed 0, as" in result.output
    seeded = load_file(path)
    assert seeded["classifier.1.bias"].shape == (7,)
    assert read_init(str(path)).description is None
    published = squeezenet1_1().state_dict()
    (tmp_path / "cache" / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(published, tmp_path / "cache" / "hub" / "checkpoints" / "squeezenet1_1-b8a52dc0.pth")
    assert "for 1000 classes" in invoke(*command).output
    found = load_file(path)
    for name, tensor in published.items():
        np.testing.assert_array_equal(found[name], tensor.numpy())
