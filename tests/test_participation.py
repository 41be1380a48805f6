"""Rounds without everybody: clients drawn at random, deadlines, quorums and late updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.access.credentials import Credentials
from common.errors import ConfigError
from common.records.provenance import read_provenance
from common.tensors.layout import Layout
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.round_stream import RunEnded
from fedclient.transport.grpc_transport import GrpcTransport
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.console.status_client import ask
from fedwire.replay.replay import Replay
from fedwire.source import Capture
from tests.killpoint import trap
from tests.processes import Federation, lasting_address, wait_until, without_metadata

ENDLESS = "100000"
"""Rounds of a run that a test stops when it has seen enough."""
SMALL = ["--local-steps", "2", "--width", "0.25"]


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
    settings |= {"local_steps": 3, "width": 0.25}
    records = run(tmp_path / "run", **settings)
    assert [record["updates"] for record in records] == [s] * 6
    c_is = [load_file(path) for path in (tmp_path / "run" / "ledger").iterdir()]
    assert s <= len(c_is) <= n
    for name, c in load_file(tmp_path / "run" / "control.safetensors").items():
        np.testing.assert_allclose(sum(c_i[name] for c_i in c_is) / n, c, atol=1e-6)


def test_who_is_drawn_depends_on_seed_and_round_alone(tmp_path: Path, federation: Federation) -> None:
    flags = "--num-clients 3 --clients-per-round 2 --rounds 4 --seed 3 --local-steps 3 --width 0.25"
    federation.server(*flags.split())
    for i in range(3):
        federation.client(f"client-{i}")
    federation.finish()
    few = {"num_clients": 3, "clients_per_round": 2, "rounds": 4, "local_steps": 3, "width": 0.25}
    run(tmp_path / "simulated", **few, seed=3)
    for file in ("model", "control"):
        assert federation.bytes(file) == without_metadata(tmp_path / "simulated" / f"{file}.safetensors")


def test_a_deadline_closes_the_round_and_a_late_update_changes_nothing(federation: Federation) -> None:
    """c stops when its update is ready, and goes on when its round is closed."""
    federation.server("--num-clients", "3", "--rounds", ENDLESS, "--deadline", "2", "--quorum", "0.5", *SMALL)
    for name in ("a", "b"):
        federation.client(name)
    federation.client("c", through=trap("stop", "mid-upload", 2))
    r = int(federation.wait_for("server", r"round (\d+): goes on without c: no answer by the deadline"))
    federation.wait_for("server", rf"round {r}/{ENDLESS}: .* [12] updates")
    federation.wait_for_stop("c")
    federation.go_on("c")
    federation.wait_for("c", r"round \d+: the round has closed; this update changes nothing")
    federation.wait_for("server", rf"round {r}/{ENDLESS}: (.|\n)* 3 updates")
    federation.stop("server")
    assert_mean(federation)


def test_without_a_quorum_the_server_waits_and_says_so(federation: Federation) -> None:
    federation.server(*["--num-clients", "2", "--rounds", "2", "--deadline", "1", "--quorum", "1", *SMALL])
    federation.client("a")
    federation.client("b", through=trap("kill", "before training", 2))
    federation.wait_for_death("b")
    federation.wait_for("server", r"round 2: \d updates and nobody else to expect; waiting until there are 2")
    federation.client("b")
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [2, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients_per_round": 5}, "--clients-per-round must be at most --num-clients, got 5 of 4"),
        ({"clients_per_round": 0}, "--clients-per-round must be at least 1"),
        ({"deadline": 0.0}, "--deadline must be positive"),
        ({"gather": 1.0, "min_clients": 2}, "--gather and --min-clients exclude each other"),
        ({"lease": -1.0}, "--lease must be positive"),
        ({"min_clients": 5}, "--min-clients must be at most --num-clients, got 5 of 4"),
        ({"quorum": 0.0}, "--quorum must be above 0"),
        ({"quorum": 1.5}, "--quorum must be above 0 and at most 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings)


@pytest.mark.parametrize("setting", [{"deadline": 1.0}, {"lease": 1.0}, {"min_clients": 2}])
def test_a_simulation_waits_for_nobody(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a simulation has no --"):
        run(tmp_path / "run", **setting)


def test_a_client_whose_lease_is_over_is_not_waited_for_until_it_returns(federation: Federation) -> None:
    federation.server("--num-clients", "3", "--rounds", ENDLESS, "--lease", "2", "--quorum", "0.5", *SMALL)
    for name in ("a", "b", "c"):
        federation.client(name)
    federation.wait_for("server", rf"round \d+/{ENDLESS}: .* 3 updates")
    federation.kill("c")
    federation.wait_for("server", r"round \d+: goes on without c: no sign of life")
    federation.wait_for("server", rf"round \d+/{ENDLESS}: .* 2 updates")
    federation.wait_for_states(a="training|answered", c="gone")
    status = ask(federation.address)
    assert {"c": "gone"}.items() <= {each.client: each.reason for each in status.left_out}.items()
    assert status.rounds_without > 0
    federation.client("c")
    federation.wait_for("server", r"2 updates(.|\n)* 3 updates")
    federation.stop("server")
    assert_mean(federation)


def test_a_client_that_trains_longer_than_its_lease_gives_signs_of_life(federation: Federation) -> None:
    """b trains until four signs have come, three of which go into a lease; a alone would be a quorum."""
    signs = trap("say", "a sign of life", 0)
    flags = ["--num-clients", "2", "--rounds", "1", "--lease", "2.5", "--quorum", "0.5"]
    federation.server(*flags, through=signs)
    federation.client("a")
    federation.client("b", through=trap("hold", "a round has come"))
    federation.wait_for_states(a="answered", b="training")
    heard = federation.log("server").count("a sign of life")
    # Those of a, which waits for the next round, come as often.
    wait_until(lambda: federation.log("server").count("a sign of life") >= heard + 8, "signs of life")
    (federation.folder / "go").touch()
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [2]


def test_new_clients_join_a_run_that_goes_on_and_c_stays_the_mean(federation: Federation) -> None:
    """Also after the server was killed: seats are given once."""
    flags = ["--num-clients", "3", "--min-clients", "2", "--rounds", ENDLESS, "--algorithm", "scaffold"]
    flags += SMALL
    address = federation.server(*flags, listen=lasting_address())
    federation.client("b")
    federation.client("x")
    federation.wait_for("server", f"round 2/{ENDLESS}: .* 2 updates")
    federation.kill("server")
    federation.server(*flags, listen=address, name="server1")
    federation.wait_for("server1", rf"round \d+/{ENDLESS}: .* 2 updates")
    federation.client("a")
    federation.wait_for("server1", "a joins; 3 of 3 seats are taken")
    federation.wait_for("server1", rf"round \d+/{ENDLESS}: .* 3 updates")
    federation.kill("server1")
    federation.server(*flags, listen=address, name="server2")
    federation.wait_for("server2", rf"round \d+/{ENDLESS}: .* 3 updates")
    federation.client("late")
    assert federation.exit_code("late") == 1
    assert "all 3 seats are taken and 'late' has none" in federation.log("late")
    federation.stop("server2")
    clients = json.loads((federation.folder / "run" / "config.json").read_text())["clients"]
    assert [(c["name"], c["index"]) for c in clients] == [("b", 0), ("x", 1), ("a", 2)]
    assert_mean(federation)


def test_a_newcomer_with_other_data_than_its_seat_was_meant_for_changes_the_weights_of_c(
    federation: Federation,
) -> None:
    """By examples, c is the weighted mean of all c_i; also after a kill, and to the bit in a replay."""
    flags = ["--model", "problem:network", "--dataset", "problem:data", "--num-clients", "3"]
    flags += ["--min-clients", "2", "--rounds", ENDLESS, "--local-steps", "2", "--algorithm", "scaffold"]
    flags += ["--weighting", "examples", "--capture", "run.fedwire"]
    address = federation.server(*flags, listen=lasting_address())
    federation.client("a")
    federation.client("b")
    federation.wait_for("server", f"round 2/{ENDLESS}: .* 2 updates")
    federation.client("c", "--dataset", "problem:data", "--shard", "0/2")
    federation.wait_for("server", r"(3 updates(.|\n)*){3}")
    federation.kill("server")
    federation.server(*flags, listen=address, name="server1")
    federation.wait_for("server1", r"(3 updates(.|\n)*){3}")
    federation.stop("server1")
    clients = json.loads((federation.folder / "run" / "config.json").read_text())["clients"]
    assert [client["examples"] for client in clients] == [20, 20, 30]
    assert_mean(federation, [20, 20, 30])
    with Capture(federation.folder / "run.fedwire", lambda line: None) as capture:
        verdicts = [verdict for verdict in Replay(capture, None).run() if verdict.same is not None]
    assert {verdict.updates for verdict in verdicts} == {2, 3}
    assert [verdict for verdict in verdicts if not verdict.same] == []


@pytest.mark.slow
def test_whoever_comes_makes_up_the_run_where_n_is_not_given(tmp_path: Path, federation: Federation) -> None:
    """Also after the server was killed: N stays."""
    flags = ["--num-clients", "2", "--gather", "2", "--rounds", "3", "--seed", "3"]
    traps = (*trap("stop", "before gathering"), *trap("kill", "after the checkpoint"))
    address = federation.server(*flags, listen=lasting_address(), name="first", through=traps)
    federation.wait_for_stop("first")
    for i in range(3):
        federation.client(f"client-{i}")
    for i in range(3):
        federation.wait_for(f"client-{i}", "joining")
    federation.go_on("first")
    federation.wait_for_death("first")
    assert "starting with 3 clients" in federation.log("first")
    federation.server(*flags, listen=address)
    federation.finish()
    run(tmp_path / "simulated", num_clients=3, rounds=3, seed=3)
    for file in ("model", "control"):
        assert federation.bytes(file) == without_metadata(tmp_path / "simulated" / f"{file}.safetensors")


def test_a_client_killed_in_its_upload_does_not_hold_the_round(federation: Federation) -> None:
    federation.server(
        *["--num-clients", "2", "--rounds", "1", "--lease", "2", "--quorum", "0.5", "--local-steps", "1"]
    )
    federation.client("a")
    federation.client("b", "--uplink", "100kbit", "--capture", "b.fedwire")
    federation.wait_for_states(a="answered")
    wait_until(lambda: _sent(federation.folder / "b.fedwire"), "b sends a part of its update")
    federation.kill("b")
    federation.wait_for("server", "round 1/1: .* 1 updates")
    federation.client("b")
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [1]
    assert "round 1: goes on without b: no sign of life" in federation.log("server")


@pytest.mark.slow
def test_a_member_that_only_gives_signs_of_life_does_not_hold_a_round_for_ever(
    federation: Federation,
) -> None:
    federation.server("--num-clients", "2", "--rounds", "1", "--lease", "0.5", "--quorum", "0.5")
    federation.client("a")
    with Connection(GrpcTransport(federation.address, Credentials()), "b") as b:
        seat = b.join(None)

        def given_up() -> bool:
            b.renew(seat)
            return "round 1: goes on without b: signs of life, but no answer" in federation.log("server")

        wait_until(given_up, "the round goes on without b")
        ended = b.pull(seat.run_id, 0, [], Layout([]), Download())
    assert isinstance(ended, RunEnded)
    assert ended.took_part == 0
    federation.finish()
    last = federation.log("server").splitlines()[-1]
    assert "b is NOT in the model: signs of life, but no answer for too long" in last
    assert "1 of 1 rounds without: b (round 1, stalled)" in federation.log("server")
    here, away = read_provenance(federation.folder / "run" / "model.safetensors").clients
    assert (here.took_part, here.left_out) == ("1", {})
    assert (away.took_part, away.left_out) == ("", {"stalled": "1"})


def _sent(capture: Path) -> int:
    """Chunks of an update that are on their way."""
    if not capture.exists():
        return 0
    return sum(m.content.kind == "chunk" for m in Capture(capture, lambda line: None).messages if m.up)


def assert_mean(federation: Federation, weights: list[int] | None = None) -> None:
    """c is the weighted mean of all c_i; clients that were never counted have zero."""
    run = federation.folder / "run"
    n = json.loads((run / "config.json").read_text())["num_clients"]
    w = np.array(weights or [1] * n) / sum(weights or [1] * n)
    checkpoint = max((run / "checkpoints").glob("round-*.safetensors"))
    newest, last = load_file(checkpoint), int(checkpoint.stem.removeprefix("round-"))
    # There may be c_i of the round that was open too, which do not count, and earlier ones not yet removed.
    rounds = {path: int(path.stem.rpartition("-")[2]) for path in (run / "ledger").iterdir()}
    files = sorted((path for path, r in rounds.items() if r <= last), key=rounds.__getitem__)
    c_is = {int(path.stem.split("-")[1]): load_file(path) for path in files}
    for name in c_is[0]:
        c = newest[f"control/{name}"]
        np.testing.assert_allclose(sum(w[i] * c_i[name] for i, c_i in c_is.items()), c, atol=1e-5)
