"""Rounds without everybody: clients drawn at random, deadlines, quorums and late updates."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.config import RunConfig
from common.errors import ConfigError
from fedlab.simulate import simulate
from tests.processes import Federation


def run(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """A simulated federation; returns its rounds."""
    simulate(RunConfig(**settings), folder, lambda line: None)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("s", "n"), [(1, 10), (3, 4)])
@pytest.mark.parametrize("variates", ["explicit", "derived"])
def test_c_stays_the_mean_of_all_c_i_whoever_takes_part(
    tmp_path: Path, s: int, n: int, variates: str
) -> None:
    """Clients that were never drawn have c_i = 0 and count in N all the same."""
    settings = {"num_clients": n, "clients_per_round": s, "rounds": 6, "variates": variates, "alpha": 1.0}
    records = run(tmp_path / "run", **settings)
    assert [record["updates"] for record in records] == [s] * 6
    c_is = [load_file(path) for path in (tmp_path / "run" / "ledger").iterdir()]
    assert s <= len(c_is) <= n
    for name, c in load_file(tmp_path / "run" / "control.safetensors").items():
        np.testing.assert_allclose(sum(c_i[name] for c_i in c_is) / n, c, atol=1e-6)


def test_who_is_drawn_depends_on_seed_and_round_alone(tmp_path: Path, federation: Federation) -> None:
    flags = "--num-clients 3 --clients-per-round 2 --rounds 4 --seed 3"
    federation.server(*flags.split())
    for i in range(3):
        federation.client(f"client-{i}")
    federation.finish()
    run(tmp_path / "simulated", num_clients=3, clients_per_round=2, rounds=4, seed=3)
    for file in ("model", "control"):
        assert federation.bytes(file) == (tmp_path / "simulated" / f"{file}.safetensors").read_bytes()


def test_a_deadline_closes_the_round_and_a_late_update_changes_nothing(federation: Federation) -> None:
    flags = "--num-clients 3 --rounds 4 --deadline 2 --quorum 0.5 --local-epochs 1"
    federation.server(*flags.split())
    for name in ("a", "b", "c"):
        federation.client(name)
    federation.wait_for("c", "round 1: ")
    federation.processes["c"].send_signal(signal.SIGSTOP)
    federation.wait_for("server", r"round \d: c has not answered by the deadline")
    federation.processes["c"].send_signal(signal.SIGCONT)
    federation.finish()
    updates = [record["updates"] for record in federation.rounds()]
    assert len(updates) == 4
    assert 2 in updates
    ledger = {path.name.partition("-round-")[0] for path in (federation.folder / "run" / "ledger").iterdir()}
    assert len(ledger) == 3


def test_without_a_quorum_the_server_waits_and_says_so(federation: Federation) -> None:
    federation.server(*["--num-clients", "2", "--rounds", "2", "--deadline", "1", "--quorum", "1"])
    for name in ("a", "b"):
        federation.client(name)
    federation.wait_for("b", "run [0-9a-f]+: client 1")
    federation.kill("b")
    federation.wait_for("server", r"round \d: the deadline is over with \d updates; waiting for 2")
    federation.client("b")
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [2, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients_per_round": 5}, "--clients-per-round must be at most --num-clients, got 5 of 4"),
        ({"clients_per_round": 0}, "--clients-per-round must be at least 1"),
        ({"deadline": 0.0}, "--deadline must be positive"),
        ({"quorum": 0.0}, "--quorum must be above 0"),
        ({"quorum": 1.5}, "--quorum must be above 0 and at most 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings)


def test_a_simulation_has_no_deadline(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a simulation has no --deadline"):
        run(tmp_path / "run", deadline=1.0)
