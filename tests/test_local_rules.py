"""Momentum, weight decay and clipping: against plain loops, against torch, and what becomes of a variate."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from common.algorithms import ALGORITHMS
from common.errors import ConfigError
from common.events import Event, unheard
from common.server_step.local_rules import momentum_steps
from fedclient.training.local_steps import LocalSteps
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.events.idle import SettingIdle, SwitchIdle
from fedwire.replay.replay import Replay
from fedwire.source import Capture
from tests import oracle, problem
from tests.processes import Federation
from tests.rules import rules
from tests.test_federation import FLAGS, PARAMETERS, SHARDS, assert_equal

FEATURES, HEAD = PARAMETERS[:4], PARAMETERS[4:]
SETTINGS = {
    "num_clients": 3,
    "rounds": 3,
    "local_steps": 4,
    "batch_size": None,
    "eta_l": 0.2,
    "eta_g": 0.7,
    "augment": False,
    "norm_bound": None,
    "model": "problem:network",
    "dataset": "problem:data",
    "partition": "shards.json",
}
Simulated = Callable[..., tuple[dict[str, Tensor], dict[str, Tensor]]]


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """Simulates the problem under some settings; gives x and c."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "problem", raising=False)
    shutil.copy(problem.__file__, tmp_path / "problem.py")
    (tmp_path / "shards.json").write_text(json.dumps({"clients": SHARDS}))

    def run(**settings: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        simulate(RunConfig(**SETTINGS | settings), tmp_path / "run", unheard)
        x, c = (load_file(tmp_path / "run" / f"{name}.safetensors") for name in ("model", "control"))
        return x, c

    return run


def computed(svr: list[str], **terms: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same by the oracle."""
    images, labels = problem.data("train")
    shards = [(images[shard], labels[shard]) for shard in SHARDS]
    build = lambda: problem.network(3).double()  # noqa: E731
    return oracle.train(build, shards, svr, rounds=3, local_steps=4, eta_l=0.2, eta_g=0.7, **terms)


@pytest.mark.parametrize(
    ("settings", "svr", "terms"),
    [
        ({"algorithm": "fedpvr", "momentum": 0.9}, HEAD, {"momentum": 0.9, "heavy": FEATURES}),
        (
            {"algorithm": "fedavg", "momentum": 0.9, "momentum_on": ("0", "2")},
            [],
            {"momentum": 0.9, "heavy": FEATURES},
        ),
        (
            {"algorithm": "scaffold", "momentum": 0.9, "momentum_on": ("0", "2")},
            PARAMETERS,
            {"momentum": 0.9, "heavy": FEATURES},
        ),
        (
            {"algorithm": "fedpvr", "momentum": 0.8, "momentum_on": ("all",)},
            HEAD,
            {"momentum": 0.8, "heavy": PARAMETERS},
        ),
        (
            {"algorithm": "scaffold", "momentum": 0.8, "momentum_on": ("*.bias",)},
            PARAMETERS,
            {"momentum": 0.8, "heavy": [name for name in PARAMETERS if name.endswith("bias")]},
        ),
        ({"algorithm": "fedpvr", "weight_decay": 0.1}, HEAD, {"weight_decay": 0.1, "decayed": FEATURES}),
        (
            {"algorithm": "fedpvr", "weight_decay": 0.1, "weight_decay_on": "all"},
            HEAD,
            {"weight_decay": 0.1, "decayed": PARAMETERS},
        ),
        ({"algorithm": "fedpvr", "clip_norm": 0.05}, HEAD, {"clip_norm": 0.05, "clipped": FEATURES}),
        (
            {"algorithm": "scaffold", "clip_norm": 0.1, "clip_on": "all"},
            PARAMETERS,
            {"clip_norm": 0.1, "clipped": PARAMETERS},
        ),
        (
            {"algorithm": "fedprox", "mu": 0.5, "momentum": 0.5, "weight_decay": 0.1, "clip_norm": 0.1},
            [],
            {"mu": 0.5, "momentum": 0.5, "heavy": PARAMETERS}
            | {"weight_decay": 0.1, "decayed": PARAMETERS, "clip_norm": 0.1, "clipped": PARAMETERS},
        ),
    ],
    ids=str,
)
def test_a_run_is_that_of_plain_loops(
    simulated: Simulated, settings: dict[str, Any], svr: list[str], terms: dict[str, Any]
) -> None:
    x, c = computed(svr, **terms)
    found_x, found_c = simulated(**settings)
    assert_equal(found_x, x)
    assert_equal(found_c, c)


def test_feddyn_takes_the_weight_decay_and_clipping_of_its_authors(simulated: Simulated) -> None:
    images, labels = problem.data("train")
    shards = [(images[shard], labels[shard]) for shard in SHARDS]
    x, _ = oracle.train(
        lambda: problem.network(3).double(),
        shards,
        [],
        rounds=3,
        local_steps=4,
        eta_l=0.2,
        eta_g=1.0,
        feddyn_alpha=0.3,
        weight_decay=1e-3,
        decayed=PARAMETERS,
        clip_norm=0.1,
        clipped=PARAMETERS,
    )
    settings = {"algorithm": "feddyn", "feddyn_alpha": 0.3, "eta_g": 1.0}
    assert_equal(simulated(weight_decay=1e-3, clip_norm=0.1, **settings)[0], x)


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_steps_are_torchs_own(weight_decay: float, momentum: float, clip_norm: float | None) -> None:
    """To the bit, where nothing corrects them: gradients clipped, then `SGD`."""
    torch.manual_seed(3)
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    parameters = dict(ours.named_parameters())
    x = {name: p.detach().clone() for name, p in parameters.items()}
    rule = rules(momentum=momentum, weight_decay=weight_decay, clip_norm=clip_norm)
    local = LocalSteps(rule, parameters, x, {}, svr=())
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for _ in range(6):
        images, labels = torch.randn(5, 4), torch.randint(3, (5,))
        local.take(nn.functional.cross_entropy(ours(images), labels))
        optimiser.zero_grad()
        nn.functional.cross_entropy(theirs(images), labels).backward()  # type: ignore[no-untyped-call]
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        optimiser.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_on_a_constant_gradient_the_variate_is_that_gradient(steps: int, momentum: float) -> None:
    """Whatever c and c_i were: the loss is linear, and c_i+ its slope."""
    torch.manual_seed(steps)
    slope, start, c, c_i = (torch.randn(5, dtype=torch.float64) for _ in range(4))
    fedpvr, rule = ALGORITHMS["fedpvr"], rules(momentum=momentum, momentum_on=("all",), eta_l=0.05)
    w = nn.Parameter(start.clone())
    local = LocalSteps(rule, {"w": w}, {"w": start}, {"w": fedpvr.correction(c_i, c)}, svr=("w",))
    for _ in range(steps):
        local.take(w @ slope)
    new = fedpvr.next_variate(c_i, c, start, w.detach(), rule.variate_step_sum("w", steps), 0.0)
    torch.testing.assert_close(new, slope, rtol=1e-10, atol=1e-10)


def test_under_momentum_the_variate_is_a_mean_of_gradients_whose_weights_fall() -> None:
    torch.manual_seed(0)
    m, steps, fedpvr = 0.9, 6, ALGORITHMS["fedpvr"]
    slopes = torch.randn(steps, 5, dtype=torch.float64)
    start, c, c_i = (torch.randn(5, dtype=torch.float64) for _ in range(3))
    rule, w = rules(momentum=m, momentum_on=("w",), eta_l=0.05), nn.Parameter(start.clone())
    local = LocalSteps(rule, {"w": w}, {"w": start}, {"w": fedpvr.correction(c_i, c)}, svr=("w",))
    for slope in slopes:
        local.take(w @ slope)
    new = fedpvr.next_variate(c_i, c, start, w.detach(), rule.variate_step_sum("w", steps), 0.0)
    weights = torch.tensor([1 - m ** (steps - k) for k in range(steps)], dtype=torch.float64)
    torch.testing.assert_close(new, (weights / weights.sum()) @ slopes, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("m", [0.0, 0.3, 0.9])
def test_effective_steps_are_those_of_the_closed_form(m: float) -> None:
    for steps in (1, 2, 10, 1000):
        closed = (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)
        assert momentum_steps(steps, m) == pytest.approx(closed, rel=1e-12)
    assert momentum_steps(17, 0.0) == 17


@pytest.mark.parametrize("algorithm", ["fedpvr", "scaffold"])
def test_derived_variates_are_those_that_are_sent_also_under_momentum(
    simulated: Simulated, algorithm: str
) -> None:
    settings = {"algorithm": algorithm, "momentum": 0.9, "momentum_on": ("all",), "eta_g": 1.0}
    explicit, derived = (simulated(variates=how, **settings) for how in ("explicit", "derived"))
    for one, other in zip(explicit, derived, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_federation_with_all_of_them_equals_its_simulation_and_its_replay(
    federation: Federation, simulated: Simulated
) -> None:
    (federation.folder / "shards.json").write_text(json.dumps({"clients": SHARDS}))
    flags = ["--momentum-on", "0", "--momentum-on", "4", "--weight-decay", "0.01", "--weight-decay-on", "all"]
    flags += ["--clip-norm", "0.5", "--clip-on", "all", "--variates", "derived", "--eta-g", "1"]
    federation.server(*FLAGS, "--momentum", "0.9", *flags, "--capture", "all.fedwire")
    for name in ("a", "b", "c"):
        federation.client(name)
    federation.finish()
    x, c = simulated(
        rounds=4,
        local_steps=3,
        eta_g=1.0,
        momentum=0.9,
        momentum_on=("0", "4"),
        weight_decay=0.01,
        weight_decay_on="all",
        clip_norm=0.5,
        clip_on="all",
        variates="derived",
        norm_bound=2.0,
    )
    for name, tensors in (("model", x), ("control", c)):
        found = federation.tensors(name)
        assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())
    with closing(Capture(federation.folder / "all.fedwire", pytest.fail)) as capture:
        verdicts = Replay(capture, federation.folder / "run").run()
    assert [each.same for each in verdicts] == [True] * 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "scaffold", "weight_decay": 0.1}, ["--weight-decay"]),
        ({"algorithm": "scaffold", "weight_decay": 0.1, "weight_decay_on": "all"}, []),
        ({"algorithm": "scaffold", "clip_norm": 1.0}, ["--clip-norm"]),
        ({"algorithm": "fedpvr", "clip_norm": 1.0}, []),
        ({"momentum_on": ("all",)}, ["--momentum"]),
        ({"cka_estimator": "biased"}, ["--cka"]),
        ({"weight_decay_on": "all", "clip_on": "all"}, ["--weight-decay", "--clip-norm"]),
    ],
    ids=str,
)
def test_a_run_says_what_acts_on_nothing(tmp_path: Path, settings: dict[str, Any], said: list[str]) -> None:
    events: list[Event] = []
    simulate(RunConfig(num_clients=1, rounds=1, local_steps=1, **settings), tmp_path / "run", events.append)
    assert [event.setting for event in events if isinstance(event, (SettingIdle, SwitchIdle))] == said


def test_a_pattern_that_selects_nothing_ends_the_run(tmp_path: Path) -> None:
    config = RunConfig(num_clients=1, rounds=1, momentum=0.9, momentum_on=("head",))
    with pytest.raises(ConfigError, match="--momentum-on 'head' selects no tensor of "):
        simulate(config, tmp_path / "run", unheard)


def test_more_patterns_than_a_header_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="--momentum-on takes 64 patterns"):
        RunConfig(momentum_on=tuple(map(str, range(65))))
