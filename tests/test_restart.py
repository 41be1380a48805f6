"""A server that is killed and started again: nothing is lost, and the result is the same to the bit."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Federation

RUN = ["--num-clients", "2", "--rounds", "5", "--alpha", "0.3", "--local-epochs", "2", "--seed", "5"]
FLAGS = [*RUN, "--algorithm", "scaffold"]
FIRST_FLAGS = [
    *("--model", "problem:network", "--dataset", "problem:data", "--num-clients", "2", "--rounds", "4"),
    *("--local-steps", "2", "--seed", "3", "--alpha", "0.5", "--algorithm", "fedpvr"),
]
"""Those of tests/data/run-format-1."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation in which nothing went wrong."""
    federation = Federation(tmp_path_factory.mktemp("undisturbed"))
    federation.server(*FLAGS)
    start_clients(federation)
    federation.finish()
    yield federation
    federation.close()


def start_clients(federation: Federation, *names: str) -> None:
    """Clients a and b, or these."""
    for name in names or ("a", "b"):
        federation.client(name, server=federation.address)


def restart(federation: Federation, *flags: str) -> None:
    """Starts the server again on the same port and run directory."""
    federation.server(*(flags or FLAGS), listen=federation.address, name=f"server{len(federation.processes)}")


def assert_same_result(federation: Federation, other: Federation) -> None:
    """Byte for byte, and the same records but for times and bytes; each round is in both files once."""
    for file in ("model", "control"):
        assert federation.bytes(file) == other.bytes(file)
    for ours, theirs in zip(federation.rounds(), other.rounds(), strict=True):
        for key in ("round", "accuracy", "loss", "updates", "train_loss", "drift", "norms"):
            assert ours[key] == theirs[key], key
    every = list(range(1, len(other.rounds()) + 1))
    assert [line["round"] for line in federation.traffic()] == every
    assert [record["round"] for record in federation.rounds()] == every


@pytest.mark.parametrize(
    "moment",
    [
        "waiting for clients",
        pytest.param("round 1/5", marks=pytest.mark.slow),
        "round 3/5",
        pytest.param("round 5/5", marks=pytest.mark.slow),
    ],
)
def test_a_killed_server_goes_on_where_it_was(
    undisturbed: Federation, federation: Federation, moment: str
) -> None:
    federation.server(*FLAGS)
    if moment == "waiting for clients":
        federation.wait_for("server", moment)
        federation.kill("server")
        start_clients(federation)
    else:
        start_clients(federation)
        federation.wait_for("server", moment)
        federation.kill("server")
    restart(federation)
    federation.finish()
    assert_same_result(federation, undisturbed)


@pytest.mark.slow
def test_both_sides_killed_at_random_moments(undisturbed: Federation, federation: Federation) -> None:
    moments = random.Random(7)
    federation.server(*FLAGS)
    start_clients(federation)
    server = "server"
    for _ in range(4):
        time.sleep(moments.uniform(0.3, 1.5))
        if federation.processes[server].poll() is not None:
            break
        federation.kill(server)
        server = f"server{len(federation.processes)}"
        restart(federation)
        name = moments.choice(["a", "b"])
        if federation.processes[name].poll() is None:
            federation.kill(name)
            start_clients(federation, name)
    federation.finish()
    assert_same_result(federation, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--algorithm feddyn",
        "--algorithm fedpvr --variates derived --codec int8",
        "--algorithm scaffold --variates derived",
        "--algorithm fedavg --codec topk:0.1 --codec down=fp16",
    ],
)
def test_every_way_of_training_survives_a_killed_server(tmp_path: Path, flags: str) -> None:
    whole, broken = Federation(tmp_path / "whole"), Federation(tmp_path / "broken")
    try:
        for federation in (whole, broken):
            federation.server(*RUN, *flags.split())
            start_clients(federation)
            if federation is broken:
                for r in (1, 3):
                    federation.wait_for(
                        next(n for n in federation.processes if "server" in n), f"round {r}/5"
                    )
                    federation.kill(next(n for n in federation.processes if "server" in n))
                    restart(federation, *RUN, *flags.split())
            federation.finish()
        assert_same_result(broken, whole)
    finally:
        whole.close()
        broken.close()


def test_a_damaged_checkpoint_is_passed_over(undisturbed: Federation, federation: Federation) -> None:
    federation.server(*FLAGS)
    start_clients(federation)
    federation.wait_for("server", "round 3/5")
    federation.kill("server")
    newest = sorted((federation.folder / "run" / "checkpoints").glob("*.safetensors"))[-1]
    data = bytearray(newest.read_bytes())
    data[-100] ^= 1
    newest.write_bytes(data)
    restart(federation)
    federation.finish()
    name = next(name for name in federation.processes if name.startswith("server"))
    assert "its checksum is wrong; going back to an older checkpoint" in federation.log(name)
    assert_same_result(federation, undisturbed)


def test_other_settings_are_refused_with_the_difference(undisturbed: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path)
    shutil.copytree(undisturbed.folder / "run", tmp_path / "run")
    flags = [*FLAGS, "--eta-l", "0.3", "--seed", "6"]
    other.start("server", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "run", *flags)
    assert other.exit_code("server") == 2
    last = other.log("server").splitlines()[-1]
    assert "--eta-l was 0.1 and is 0.3; --seed was 5 and is 6" in last
    other.start(
        "fresh", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "run", "--no-resume", *FLAGS
    )
    assert other.exit_code("fresh") == 2
    assert "already holds config.json" in other.log("fresh")


def test_a_damaged_config_ends_in_one_line(undisturbed: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path)
    shutil.copytree(undisturbed.folder / "run", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["clients"][0]["index"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    other.start("server", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "run", *FLAGS)
    assert other.exit_code("server") == 1
    assert (
        "config.json: clients.0.index: expected whole number from 0, got nothing; it is damaged"
        in (other.log("server").splitlines()[-1])
    )
    assert "Traceback" not in other.log("server")


def test_a_finished_run_tells_clients_so_and_changes_nothing(undisturbed: Federation, tmp_path: Path) -> None:
    again = Federation(tmp_path)
    shutil.copytree(undisturbed.folder / "run", tmp_path / "run")
    again.server(*FLAGS)
    start_clients(again)
    again.finish()
    assert "run finished after round 5" in again.log("a")
    assert_same_result(again, undisturbed)


def test_the_run_directory_is_whole_after_every_kill(federation: Federation) -> None:
    """Lines of rounds.jsonl are whole, and there are never more checkpoints than are kept."""
    federation.server(*FLAGS)
    start_clients(federation)
    for r in (1, 2, 3):
        federation.wait_for([n for n in federation.processes if n.startswith("server")][-1], f"round {r}/5")
        federation.kill([n for n in federation.processes if n.startswith("server")][-1])
        lines = (federation.folder / "run" / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines[:r]] == list(range(1, r + 1))
        checkpoints = list((federation.folder / "run" / "checkpoints").glob("round-*.safetensors"))
        assert 1 <= len(checkpoints) <= 4
        restart(federation)
    federation.finish()
    assert len(federation.rounds()) == 5
    assert not re.search("Traceback", "".join(path.read_text() for path in federation.folder.glob("*.log")))


def test_a_run_of_the_release_before_formats_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """tests/data/run-format-1 was left by that release, killed after the checkpoint of round 2."""
    old, new = Federation(tmp_path / "old"), Federation(tmp_path / "new")
    shutil.copytree(Path(__file__).parent / "data" / "run-format-1", old.folder / "run")
    try:
        for federation in (old, new):
            federation.server(*FIRST_FLAGS)
            start_clients(federation)
            federation.finish()
        assert "after round 2 of 4" in old.log("server")
        assert_same_result(old, new)
        assert old.rounds()[0]["format"] == 2
    finally:
        old.close()
        new.close()
