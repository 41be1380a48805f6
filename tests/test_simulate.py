"""A simulation is the federation, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from common.errors import ConfigError, DivergedError, ExitCode
from common.events import Event, unheard
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.events.rounds import RunDiverged
from tests.processes import Federation, without_metadata

SETTINGS: dict[str, Any] = {
    "num_clients": 2,
    "rounds": 3,
    "alpha": 0.3,
    "seed": 4,
    "momentum": 0.5,
    "local_steps": 8,
}
CASES: dict[str, dict[str, Any]] = {
    "fedpvr": {"model": "cnn"},
    "fedavg": {"model": "resnet8-bn"},
    "scaffold": {"model": "cnn"},
    "fedprox": {"model": "cnn", "mu": 0.5},
    "feddyn": {"model": "cnn", "feddyn_alpha": 0.1, "num_clients": 3, "clients_per_round": 2},
}


@pytest.mark.parametrize(
    "algorithm",
    [
        "feddyn",
        pytest.param("fedpvr", marks=pytest.mark.slow),
        pytest.param("fedavg", marks=pytest.mark.slow),
        pytest.param("scaffold", marks=pytest.mark.slow),
        pytest.param("fedprox", marks=pytest.mark.slow),
    ],
)
def test_simulation_and_federation_write_the_same_files(federation: Federation, algorithm: str) -> None:
    settings = SETTINGS | CASES[algorithm] | {"algorithm": algorithm}
    simulate(RunConfig(**settings), federation.folder / "simulated", unheard)
    flags = [part for k, v in settings.items() for part in ("--" + k.replace("_", "-"), str(v))]
    federation.server(*flags)
    for i in range(settings["num_clients"]):
        federation.client(f"client-{i}")
    federation.finish()
    assert not list((federation.folder / "simulated").glob(".clients-*"))
    for file in ("model", "control"):
        simulated = without_metadata(federation.folder / "simulated" / f"{file}.safetensors")
        assert simulated == federation.bytes(file), file
    lines = (federation.folder / "simulated" / "rounds.jsonl").read_text().splitlines()
    for ours, theirs in zip(map(json.loads, lines), federation.rounds(), strict=True):
        for key in ("round", "accuracy", "loss", "updates", "train_loss", "drift", "bytes"):
            assert ours[key] == theirs[key], key


def test_buffers_are_counted_apart_and_averaged(tmp_path: Path) -> None:
    config = RunConfig(model="resnet8-bn", algorithm="fedavg", num_clients=2, rounds=2)
    simulate(config, tmp_path / "run", unheard)
    record = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    assert record["bytes"]["up"]["buffer"] == 2 * (672 * 4 + 9 * 8)
    counter = load_file(tmp_path / "run" / "model.safetensors")["bn1.num_batches_tracked"]
    assert counter.item() == 2 * (718 // 32), "both clients took as many batches, so the mean is exact"


def test_a_simulation_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--svr 'head' selects no parameter"):
        simulate(RunConfig(svr=("head",)), tmp_path / "run", unheard)


def test_a_simulation_that_diverges_ends_with_a_reason(tmp_path: Path) -> None:
    said: list[Event] = []
    with pytest.raises(DivergedError, match="round 1: no client has an update to give") as caught:
        simulate(RunConfig(eta_l=1e30, rounds=2), tmp_path / "run", said.append)
    assert caught.value.exit_code is ExitCode.DIVERGED
    assert [event.round for event in said if isinstance(event, RunDiverged)] == [1]


def test_an_x_that_leaves_the_finite_numbers_is_told_as_divergence(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="is not finite any more"):
        simulate(RunConfig(eta_g=1e300, rounds=3), tmp_path / "run", unheard)
