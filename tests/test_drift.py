"""E_r, sigma and zeta: what is measured, what leaves a site for it, and that training is as without it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from common.errors import WireError
from common.metrics import drift
from common.metrics.drift import ClientDrift
from common.server_step.heterogeneity import Heterogeneity
from common.server_step.updates import ReadUpdate
from common.tensors.layout import Layout, TensorSpec
from fedclient.measures.drift import DriftMeter
from fedclient.training.local_steps import LocalSteps
from fedpvr.v1 import federation_pb2 as pb
from tests import problem
from tests.processes import Federation
from tests.rules import rules
from tests.test_federation import FLAGS, PARAMETERS, SHARDS
from tests.test_local_rules import HEAD, Simulated, simulated

__all__ = ["simulated"]


def recorded(folder: Path) -> list[dict[str, Any] | None]:
    """What the rounds of a run have."""
    lines = (folder / "run" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line).get("client_drift") for line in lines]


def gradients() -> list[dict[str, torch.Tensor]]:
    """Of every client at the first x."""
    images, labels = problem.data("train")
    found = []
    for shard in SHARDS:
        model = problem.network(3).double()
        loss = nn.functional.cross_entropy(model(images[shard]), labels[shard])
        loss.backward()  # type: ignore[no-untyped-call]
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    return found


def spread(names: list[str]) -> float:
    """zeta^2 of the clients' gradients at the first x on some parameters."""
    total = 0.0
    for name in names:
        stack = torch.stack([g[name] for g in gradients()])
        total += float((stack - stack.mean(0)).square().sum()) / len(stack)
    return total


@pytest.mark.parametrize(
    ("settings", "svr"),
    [
        ({"algorithm": "fedpvr"}, HEAD),
        ({"algorithm": "fedavg"}, []),
        ({"algorithm": "scaffold"}, PARAMETERS),
        ({"algorithm": "fedavg", "momentum": 0.9}, []),
        ({"algorithm": "fedpvr", "variates": "derived"}, HEAD),
    ],
    ids=str,
)
def test_after_one_full_step_from_zero_variates_all_of_it_is_known(
    simulated: Simulated, tmp_path: Path, settings: dict[str, Any], svr: list[str]
) -> None:
    """y_i - x is eta_l times the gradient at x then, and clients differ by their gradients there."""
    simulated(record_drift=True, rounds=1, local_steps=1, eta_g=1.0, **settings)
    (found,) = recorded(tmp_path)
    assert found is not None
    others = [name for name in PARAMETERS if name not in svr]
    for key, names in (("zeta_svr", svr), ("zeta_sgd", others)):
        assert found.get(key) == (pytest.approx(spread(names), rel=1e-9) if names else None)
    size = {
        key: sum(float((0.2 * g[n]).square().sum()) for g in gradients() for n in names) / 3
        for key, names in (("drift", PARAMETERS), ("drift_svr", svr))
    }
    assert {key: found[key] for key in size} == pytest.approx(size, rel=1e-9)
    assert found["clients"] == 3
    assert found.get("noise") is None, "one step says nothing of noise"


def test_e_r_is_the_mean_over_steps_of_the_distance_from_x() -> None:
    torch.manual_seed(0)
    start = {"a": torch.randn(3, dtype=torch.float64), "b": torch.randn(2, dtype=torch.float64)}
    w = {name: nn.Parameter(value.clone()) for name, value in start.items()}
    local = LocalSteps(rules(eta_l=0.1, momentum=0.9), w, start, {}, svr=())
    local.measure(["b"], [])
    slopes = torch.randn(4, 5, dtype=torch.float64)
    ways = []
    for slope in slopes:
        local.take(w["a"] @ slope[:3] + w["b"] @ slope[3:])
        ways.append({name: w[name].detach() - start[name] for name in w})
    assert local.meter is not None
    found = local.meter.measured()
    assert found is not None
    assert found.drift_sgd == pytest.approx(sum(float(way["a"] @ way["a"]) for way in ways) / 4)
    assert found.drift_svr == pytest.approx(sum(float(way["b"] @ way["b"]) for way in ways) / 4)
    steps = (slopes[1:] - slopes[:-1]).square()
    assert found.noise_sgd == pytest.approx(float(steps[:, :3].sum()) / 3 / 2)
    assert found.noise_svr == pytest.approx(float(steps[:, 3:].sum()) / 3 / 2)


def test_the_noise_of_gradients_with_a_known_variance_is_found() -> None:
    """In expectation half the squared distance of two draws is the variance, whatever their mean is."""
    torch.manual_seed(2)
    y, sigma = [torch.zeros(50)], 0.3
    meter = DriftMeter(["w"], y, y, svr=())
    for _ in range(400):
        meter.step([5.0 + sigma * torch.randn(50)])
    found = meter.measured()
    assert found is not None
    assert found.noise_sgd == pytest.approx(50 * sigma**2, rel=0.05)
    assert (found.drift_sgd, found.drift_svr, found.noise_svr) == (0.0, 0.0, 0.0)


def test_personal_parameters_are_not_measured() -> None:
    y = [torch.ones(2), torch.ones(2)]
    meter = DriftMeter(["", "w"], y, [torch.zeros(2), torch.ones(2)], svr=())
    meter.step([torch.ones(2), torch.ones(2)])
    meter.step([torch.zeros(2), torch.ones(2)])
    assert meter.measured() == ClientDrift(drift_svr=0.0, drift_sgd=0.0, noise_svr=0.0, noise_sgd=0.0)


def test_clients_that_make_different_numbers_of_steps_are_compared_by_their_mean_gradients() -> None:
    layout = Layout([TensorSpec("w", "float64", (3,))])
    x, slope = layout.allocate(), np.array([1.0, -2.0, 0.5])
    found = Heterogeneity(rules(algorithm="fedavg", eta_l=0.1), layout, x)
    for steps in (2, 5, 11):
        values = layout.allocate()
        layout.array(values, 0)[:] = -0.1 * steps * slope
        found.add(ReadUpdate(values, None, steps, 0.1 * steps, 1.0, 1.0, True))
    assert found.zeta(reduced=False) == pytest.approx(0.0, abs=1e-12)
    assert found.zeta(reduced=True) is None


@pytest.mark.parametrize("algorithm", ["fedpvr", "feddyn"])
def test_it_changes_nothing_and_is_not_there_unless_it_is_asked_for(
    simulated: Simulated, tmp_path: Path, algorithm: str
) -> None:
    settings = {"algorithm": algorithm, "eta_g": 1.0, "batch_size": 4}
    plain = simulated(**settings)
    assert recorded(tmp_path) == [None] * 3
    measured = simulated(record_drift=True, **settings)
    found = recorded(tmp_path)
    assert all(each and each["drift"] > 0 and each["noise"] > 0 and each["zeta_sgd"] > 0 for each in found)
    for one, other in zip(plain, measured, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e31])
def test_what_no_square_can_be_is_refused(value: float) -> None:
    for name in ("drift_svr", "drift_sgd", "noise_svr", "noise_sgd"):
        with pytest.raises(WireError, match="measures: squares are from 0 to"):
            drift.from_message(pb.DriftMeasures(**{name: value}))


def test_measures_go_through_a_message_and_back() -> None:
    for noise in (None, 0.25):
        told = ClientDrift(drift_svr=0.5, drift_sgd=1.5, noise_svr=noise, noise_sgd=noise)
        message = pb.DriftMeasures.FromString(drift.to_message(told).SerializeToString())
        assert drift.from_message(message) == told


def test_a_site_that_suppresses_small_counts_does_not_tell_them(federation: Federation) -> None:
    """Batches of four are below its ten; the others tell, and what has left is in their outboxes."""
    (federation.folder / "shards.json").write_text(json.dumps({"clients": [SHARDS[2], SHARDS[1], SHARDS[0]]}))
    (federation.folder / "site.toml").write_text("suppress_below = 10")
    (federation.folder / "open.toml").write_text("")
    federation.server(*FLAGS, "--record-drift", "--batch-size", "4", "--rounds", "2")
    federation.client("a", "--site", "site.toml")
    federation.client("b", "--site", "open.toml")
    federation.client("c")
    federation.finish()
    assert [each and each["clients"] for each in recorded(federation.folder)] == [2, 2]
    assert "measures" not in outbox(federation, "a")
    assert "measures" in outbox(federation, "b")


def outbox(federation: Federation, name: str) -> str:
    """All that a client has written down of what has left."""
    files = (federation.folder / "state" / name).rglob("*outbox*")
    return "".join(file.read_text() for file in files if file.is_file())
