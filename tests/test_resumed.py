"""A simulation that is killed at any moment goes on with the same command, and ends with the same bits."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, ExitCode
from common.events import Event, unheard
from fedlab.simulation import simulate
from fedserver.api.settings import flags
from fedserver.config import RunConfig
from fedserver.events.run import FinishedBefore, RunResumed
from tests.killpoint import trap
from tests.processes import Federation, children, wait_for_end, wait_until, without_metadata
from tests.test_direct import SETTINGS, results

ROUNDS = 4
CASES: dict[str, dict[str, Any]] = {
    "fedpvr": {},
    "fedavg": {"algorithm": "fedavg"},
    "scaffold": {"algorithm": "scaffold", "clients_per_round": 2},
    "fedprox": {"algorithm": "fedprox"},
    "feddyn": {"algorithm": "feddyn", "clients_per_round": 2},
    "derived": {"variates": "derived"},
    "residuals": {"codec": ("topk:0.1",)},
    "residuals, derived": {"variates": "derived", "codec": ("topk:0.3", "down=bf16")},
    "personal": {"model": "cnn", "personal": ("classifier*",), "freeze": ("features.0*",)},
    "residuals and personal": {
        "model": "cnn",
        "personal": ("classifier*",),
        "codec": ("topk:0.2",),
        "clients_per_round": 2,
    },
    "too large": {"algorithm": "scaffold", "norm_bound": 1.05, "alpha": 0.1},
}
QUICK = ("feddyn", "residuals, derived", "residuals and personal", "too large")
"""Between them they have every file that a client keeps; the others are slow tests."""
POINTS = (
    ("mid-training", 13),
    ("before a client remembers", 7),
    ("after a client remembers", 7),
    ("mid-fold", 7),
    ("after the fold", 2),
    ("mid-count", 5),
    ("mid-checkpoint, simulated", 2),
    ("before the record", 2),
)
"""Each in one of the middle rounds."""


def settings_of(case: str) -> RunConfig:
    """Of a case."""
    return RunConfig(**(SETTINGS | {"rounds": ROUNDS} | CASES[case]))


def killed(federation: Federation, config: RunConfig, point: tuple[str, int], jobs: int = 1) -> None:
    """Starts a simulation that is killed at a point; it leaves no process behind."""
    arguments = ("simulate", *flags(config), "--run-dir", "killed", "--jobs", str(jobs))
    federation.start("lab", "fedlab", *arguments, through=trap("kill", *point))
    federation.wait_for_death("lab")


def require_same(folder: Path, config: RunConfig) -> None:
    """Goes on with what was killed, and compares with a run that was not."""
    said: list[Event] = []
    simulate(config, folder / "killed", said.append)
    simulate(config, folder / "whole", unheard)
    found, whole = results(folder / "killed"), results(folder / "whole")
    for name in ("model.safetensors", "control.safetensors", "checkpoints"):
        assert found[name] == whole[name], name
    for ours, theirs in zip(found["rounds.jsonl"], whole["rounds.jsonl"], strict=True):
        for key in ours.keys() - {"bytes"}:
            assert ours[key] == theirs[key], key
    (resumed,) = [event.round for event in said if isinstance(event, RunResumed)]
    assert 1 <= resumed < ROUNDS
    assert not (folder / "killed" / "clients").exists()


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] * (c not in QUICK)) for c in CASES]
)
def test_a_simulation_that_was_killed_ends_with_the_same_bits(
    federation: Federation, tmp_path: Path, case: str
) -> None:
    """The point differs from case to case; all of them with all cases are a slow test."""
    config = settings_of(case)
    points = [point for point in POINTS if "remembers" not in point[0] or _remembers(config)]
    killed(federation, config, points[[*CASES].index(case) % len(points)])
    require_same(tmp_path, config)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "point"), [*itertools.product(CASES, POINTS)])
def test_it_does_wherever_it_is_killed(
    federation: Federation, tmp_path: Path, case: str, point: tuple[str, int]
) -> None:
    config = settings_of(case)
    if "remembers" in point[0] and not _remembers(config):
        point = ("mid-training", 16)
    killed(federation, config, point)
    require_same(tmp_path, config)


def _remembers(config: RunConfig) -> bool:
    return (
        config.algorithm not in ("fedavg", "fedprox") or bool(config.personal) or config.codecs.up != "fp32"
    )


def test_workers_end_with_a_simulation_that_is_killed_and_it_goes_on_with_any_number_of_them(
    federation: Federation, tmp_path: Path
) -> None:
    config = settings_of("residuals and personal")
    arguments = ("simulate", *flags(config), "--run-dir", "killed", "--jobs", "2")
    federation.start("lab", "fedlab", *arguments, through=trap("stop", "after the fold", 2))
    federation.wait_for_stop("lab")
    workers = children(federation.processes["lab"].pid)
    assert len(workers) == 2
    federation.kill("lab")
    wait_for_end(*workers)
    require_same(tmp_path, config)


def test_ctrl_c_ends_all_processes_of_a_simulation(federation: Federation) -> None:
    config = RunConfig(num_clients=4, rounds=10_000, local_steps=1, eval_every=0)
    federation.start("lab", "fedlab", "simulate", *flags(config), "--run-dir", "run", "--jobs", "2")
    wait_until((federation.folder / "run" / "model.safetensors").exists, "a round has closed")
    lab = federation.processes["lab"]
    workers = children(lab.pid)
    lab.send_signal(signal.SIGINT)
    assert federation.exit_code("lab") == ExitCode.INTERRUPTED, federation.log("lab")
    wait_for_end(*workers)
    assert len(workers) == 2


def test_a_finished_simulation_is_not_run_again_and_other_settings_are_refused(tmp_path: Path) -> None:
    config, said = settings_of("fedavg"), list[Event]()
    simulate(config, tmp_path, unheard)
    before = without_metadata(tmp_path / "model.safetensors")
    simulate(config, tmp_path, said.append)
    assert any(isinstance(event, FinishedBefore) for event in said)
    assert without_metadata(tmp_path / "model.safetensors") == before
    with pytest.raises(ConfigError, match="--seed was 4 and is 5"):
        simulate(replace(config, seed=5), tmp_path, unheard)
    with pytest.raises(ConfigError, match="already holds"):
        simulate(config, tmp_path, unheard, resume=False)
