"""On a real GPU: federations end near what they end with on the processor. Run by `make test-cuda` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from common.devices.choice import on_devices, placed
from common.devices.machine import found
from common.devices.place import PROCESSOR
from common.events import Event, unheard
from common.records.rounds import RoundRecord
from fedlab.api.run import Run
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from tests.processes import Federation
from tests.test_devices import trained

pytestmark = pytest.mark.cuda
FEDERATIONS: dict[str, dict[str, Any]] = {
    "mlp": {"algorithm": "fedpvr"},
    "cnn": {"algorithm": "scaffold", "augment": True, "personal": ("features.0",), "cka": 0},
    "resnet8-bn": {"algorithm": "feddyn", "feddyn_alpha": 0.1, "width": 0.5, "validation": 0.1},
    "vgg11": {"algorithm": "fedavg", "width": 0.25, "image_size": 32, "freeze": ("features.0",)},
}


@pytest.fixture(autouse=True)
def gpu() -> None:
    """Fails without one: whoever asks for these tests wants them run."""
    assert found().gpus, "these tests need a GPU that torch finds"


def settings(model: str, **changes: Any) -> dict[str, Any]:
    """Few steps, so that differences have no time to grow."""
    usual = {"num_clients": 2, "rounds": 2, "local_steps": 4, "batch_size": 32, "cka": 16, "eta_l": 0.05}
    return usual | {"model": model} | FEDERATIONS[model] | changes


def near(one: Path, other: Path) -> None:
    """The same tensors up to the arithmetic of another processor."""
    here, there = load_file(one), load_file(other)
    assert here.keys() == there.keys()
    for name, array in here.items():
        np.testing.assert_allclose(there[name], array, rtol=1e-2, atol=2e-3, err_msg=name)


@pytest.mark.parametrize("model", FEDERATIONS)
def test_a_simulated_federation_ends_near_the_processors(model: str, tmp_path: Path) -> None:
    config, events = RunConfig(**settings(model)), list[Event]()
    simulate(config, tmp_path / "cpu", unheard)
    simulate(config, tmp_path / "cuda", events.append, on_devices("cuda", "off"))
    assert "computing on cuda:0" in [event.text() for event in events]
    near(tmp_path / "cpu" / "model.safetensors", tmp_path / "cuda" / "model.safetensors")
    here, there = (Run(tmp_path / name).rounds.records for name in ("cpu", "cuda"))
    for one, other in zip(here, there, strict=True):
        assert isinstance(one, RoundRecord)
        assert (one.accuracy is None) == (other.accuracy is None)
        if one.accuracy is not None:
            assert other.accuracy == pytest.approx(one.accuracy, abs=0.03)


def test_a_plug_in_with_a_mask_besides_its_state_dict_trains() -> None:
    there = trained("masked", placed("cuda"))
    assert there.loss == pytest.approx(trained("masked", PROCESSOR).loss, rel=1e-3)


def test_processes_share_the_gpus_and_the_server_evaluates_on_one(federation: Federation) -> None:
    """Real processes, which fork before they look for a GPU."""
    given = settings("cnn", personal=(), num_clients=3)
    flags = [
        part for name, value in given.items() if value != () for part in _flag(name.replace("_", "-"), value)
    ]
    simulate(RunConfig(**given), federation.folder / "cpu", unheard)
    federation.server(*flags, "--device", "auto")
    own = ("--server", federation.address, "--name", "site", "--state-dir", "state")
    federation.start("site", "fedclient", "run", *own, "--replicas", "3", "--device", "cuda")
    federation.finish()
    used = {line.rpartition(" ")[2] for line in federation.log("site").splitlines() if "computing on" in line}
    assert used == {f"cuda:{k % torch.cuda.device_count()}" for k in range(3)}


def _flag(name: str, value: object) -> list[str]:
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]


def test_bf16_trains_near_the_same_loss(tmp_path: Path) -> None:
    config = RunConfig(**settings("cnn"))
    losses = []
    for autocast in ("off", "bf16"):
        simulate(config, tmp_path / autocast, unheard, on_devices("cuda", autocast))
        losses.append([record.train_loss for record in Run(tmp_path / autocast).rounds.records])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
