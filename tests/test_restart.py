"""A server that is killed and started again: nothing is lost, and the result is the same to the bit."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.records.provenance import read_provenance
from tests.killpoint import trap
from tests.processes import Federation, lasting_address

RUN = ["--num-clients", "2", "--rounds", "5", "--alpha", "0.3", "--local-steps", "2", "--seed", "5"]
FLAGS = [*RUN, "--width", "0.25", "--algorithm", "scaffold"]
FIRST_FLAGS = [
    *("--model", "problem:network", "--dataset", "problem:data", "--num-clients", "2", "--rounds", "4"),
    *("--local-steps", "2", "--seed", "3", "--alpha", "0.5", "--algorithm", "fedpvr"),
    *("--norm-bound", "none"),
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


def start_clients(federation: Federation) -> None:
    """Clients a and b."""
    for name in ("a", "b"):
        federation.client(name)


def assert_same_result(federation: Federation, other: Federation) -> None:
    """Byte for byte, and the same records but for times and bytes; each round is in both files once."""
    for file in ("model", "control"):
        assert federation.bytes(file) == other.bytes(file)
    one, two = (read_provenance(each.folder / "run" / "model.safetensors") for each in (federation, other))
    assert replace(one, run_id=two.run_id) == two
    for ours, theirs in zip(federation.rounds(), other.rounds(), strict=True):
        for key in ("round", "accuracy", "loss", "updates", "train_loss", "drift", "norms"):
            assert ours[key] == theirs[key], key
    every = list(range(1, len(other.rounds()) + 1))
    assert [line["round"] for line in federation.traffic()] == every
    assert [record["round"] for record in federation.rounds()] == every


def test_a_server_killed_before_anybody_came_starts_afresh(
    undisturbed: Federation, federation: Federation
) -> None:
    address = federation.server(*FLAGS, listen=lasting_address(), name="first")
    federation.wait_for("first", "waiting for clients")
    federation.kill("first")
    start_clients(federation)
    federation.server(*FLAGS, listen=address)
    federation.finish()
    assert_same_result(federation, undisturbed)


@pytest.mark.parametrize(
    "r", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(5, marks=pytest.mark.slow)]
)
def test_a_killed_server_goes_on_where_it_was(
    undisturbed: Federation, federation: Federation, r: int
) -> None:
    """It is killed when round r is closed and evaluated, and its record about to be written."""
    address = federation.server(
        *FLAGS, listen=lasting_address(), name="first", through=trap("kill", "before the record", r)
    )
    start_clients(federation)
    federation.wait_for_death("first")
    assert len(federation.rounds() if r > 1 else []) == r - 1
    federation.server(*FLAGS, listen=address)
    federation.finish()
    assert_same_result(federation, undisturbed)


@pytest.mark.slow
def test_both_sides_killed_at_random_moments(undisturbed: Federation, federation: Federation) -> None:
    """Whenever it is: a side that has ended before its turn is left alone."""
    moments = random.Random(7)
    address = federation.server(*FLAGS, listen=lasting_address(), name="server0")
    start_clients(federation)
    for kills in range(4):
        time.sleep(moments.uniform(0.1, 0.5))
        victim = moments.choice(["a", "b"])
        server = federation.processes[f"server{kills}"]
        server.kill()
        if server.wait() == 0:
            break
        del federation.processes[f"server{kills}"]
        if federation.processes[victim].poll() is None:
            federation.processes[victim].kill()
            federation.processes[victim].wait()
            federation.client(victim)
        federation.server(*FLAGS, listen=address, name=f"server{kills + 1}")
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
        whole.server(*RUN, *flags.split())
        start_clients(whole)
        whole.finish()
        broken.address = lasting_address()
        start_clients(broken)
        for name, point in (("first", "before the record"), ("second", "after the checkpoint")):
            broken.server(
                *RUN, *flags.split(), listen=broken.address, name=name, through=trap("kill", point, 2)
            )
            broken.wait_for_death(name)
        broken.server(*RUN, *flags.split(), listen=broken.address)
        broken.finish()
        assert_same_result(broken, whole)
    finally:
        whole.close()
        broken.close()


def flip_a_bit(path: Path, at: int) -> None:
    """As a bad disk does."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damaged", ["checkpoints/round-000003", "ledger/client-00001-round-000003"])
def test_a_damaged_checkpoint_or_variate_is_passed_over(
    undisturbed: Federation, federation: Federation, damaged: str
) -> None:
    address = federation.server(
        *FLAGS, listen=lasting_address(), name="first", through=trap("kill", "after the checkpoint", 3)
    )
    start_clients(federation)
    federation.wait_for_death("first")
    flip_a_bit(federation.folder / "run" / f"{damaged}.safetensors", -100)
    federation.server(*FLAGS, listen=address)
    federation.finish()
    assert "its checksum is wrong; going back to an older checkpoint" in federation.log("server")
    assert_same_result(federation, undisturbed)


def test_a_variate_that_is_damaged_while_it_is_needed_ends_the_server_and_not_the_run(
    undisturbed: Federation, federation: Federation
) -> None:
    """The clients wait, and the next process goes back to where the variate before is whole."""
    address = federation.server(
        *FLAGS, listen=lasting_address(), name="first", through=trap("stop", "before broadcast", 4)
    )
    start_clients(federation)
    federation.wait_for_stop("first")
    flip_a_bit(federation.folder / "run" / "ledger" / "client-00000-round-000003.safetensors", -1)
    federation.go_on("first")
    assert federation.exit_code("first") == 1
    assert "its checksum is wrong; a server that is started again" in federation.log("first").splitlines()[-1]
    del federation.processes["first"]
    federation.server(*FLAGS, listen=address)
    federation.finish()
    assert_same_result(federation, undisturbed)


def test_a_damaged_variate_of_a_client_is_replaced_by_the_copy_of_the_server(
    undisturbed: Federation, federation: Federation
) -> None:
    federation.server(*FLAGS)
    federation.client("a")
    federation.client("b", through=trap("kill", "before training", 3))
    federation.wait_for_death("b")
    (held,) = (federation.folder / "state" / "b").glob("run-*/variate-*.safetensors")
    flip_a_bit(held, -1)
    federation.client("b")
    federation.finish()
    log = federation.log("b")
    assert "variate-000002.safetensors is damaged: its checksum is wrong; going on without it" in log
    assert "the variate of round 2 came back from the server" in log
    assert_same_result(federation, undisturbed)


def test_a_server_without_a_whole_copy_of_a_lost_variate_goes_back_too(
    undisturbed: Federation, federation: Federation
) -> None:
    address = federation.server(*FLAGS, listen=lasting_address(), name="first")
    federation.client("a")
    federation.client("b", through=trap("kill", "before training", 3))
    federation.wait_for_death("b")
    shutil.rmtree(federation.folder / "state" / "b")
    run = federation.folder / "run"
    seats = {seat["name"]: seat["index"] for seat in json.loads((run / "config.json").read_text())["clients"]}
    kept = run / "ledger" / f"client-0000{seats['b']}-round-000002.safetensors"
    flip_a_bit(kept, -1)
    federation.client("b")
    assert federation.exit_code("first") == 1
    assert f"{kept.name} is damaged: its checksum is wrong" in federation.log("first").splitlines()[-1]
    del federation.processes["first"]
    federation.server(*FLAGS, listen=address)
    federation.finish()
    assert_same_result(federation, undisturbed)


def test_damaged_lines_of_rounds_are_set_aside_and_written_again(
    undisturbed: Federation, federation: Federation
) -> None:
    """From the checkpoints, as far as they reach; bytes by tensor are nowhere else, and are lost."""
    address = federation.server(
        *FLAGS, listen=lasting_address(), name="first", through=trap("kill", "after the checkpoint", 5)
    )
    start_clients(federation)
    federation.wait_for_death("first")
    run = federation.folder / "run"
    for name, damaged in (("rounds.jsonl", 2), ("traffic.jsonl", 1)):
        lines = (run / name).read_bytes().splitlines(keepends=True)
        lines[damaged] = b"\0" * 40 + lines[damaged][40:]
        (run / name).write_bytes(b"".join(lines))
    (run / "rounds.jsonl.damaged-1").touch()
    federation.server(*FLAGS, listen=address)
    federation.finish()
    log = federation.log("server")
    assert re.search(r"rounds\.jsonl: 1 of \d lines are damaged; .* kept as rounds\.jsonl\.damaged-2", log)
    assert "traffic.jsonl: 1 of 5 lines are damaged" in log
    assert (run / "traffic.jsonl.damaged-1").read_bytes().count(b"\n") == 5
    for file in ("model", "control"):
        assert federation.bytes(file) == undisturbed.bytes(file)
    for ours, theirs in zip(federation.rounds(), undisturbed.rounds(), strict=True):
        assert all(ours[key] == theirs[key] for key in ("round", "accuracy", "loss", "drift", "norms"))
    assert [line["round"] for line in federation.traffic()] == [1, 3, 4, 5]


def test_other_settings_are_refused_with_the_difference(undisturbed: Federation, tmp_path: Path) -> None:
    other = Federation(tmp_path)
    shutil.copytree(undisturbed.folder / "run", tmp_path / "run")
    flags = [*FLAGS, "--eta-l", "0.3", "--seed", "6"]
    other.start("server", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "run", *flags)
    assert other.exit_code("server") == 2
    last = other.log("server").splitlines()[-1]
    for difference in ("--eta-l was 0.1 and is 0.3", "--seed was 5 and is 6"):
        assert f"{difference}; " in last
    other.start(
        "fresh", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "run", "--no-resume", *FLAGS
    )
    assert other.exit_code("fresh") == 2
    assert "already holds config.json" in other.log("fresh")
    other.close()


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
    other.close()


def test_a_c_with_unknown_weights_is_not_gone_on_with(undisturbed: Federation, tmp_path: Path) -> None:
    """As an earlier release has left it, whose c did not have the weights of x."""
    other = Federation(tmp_path)
    shutil.copytree(undisturbed.folder / "run", tmp_path / "run")
    config = (tmp_path / "run" / "config.json").read_text()
    (tmp_path / "run" / "config.json").write_text(config.replace('"uniform"', '"examples"'))
    for path in (tmp_path / "run" / "checkpoints").glob("*.safetensors"):
        known, unknown = (b'total_weight\\": 2.0', b'total_weight\\":null')
        data = path.read_bytes()
        assert known in data
        path.write_bytes(data.replace(known, unknown).replace(b'"crc32c":"', b'"no-crc":"'))
    flags = [*FLAGS, "--weighting", "examples"]
    other.start("server", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "run", *flags)
    assert other.exit_code("server") == 1
    assert "without the weights of --weighting examples; start anew" in other.log("server").splitlines()[-1]
    other.close()


def test_a_finished_run_tells_clients_so_and_changes_nothing(undisturbed: Federation, tmp_path: Path) -> None:
    again = Federation(tmp_path)
    shutil.copytree(undisturbed.folder / "run", tmp_path / "run")
    again.server(*FLAGS)
    start_clients(again)
    again.finish()
    for name in ("a", "b"):
        assert "run finished after round 5" in again.log(name)
    done = r"run \w+ in run is finished \(5 of 5 rounds, accuracy [\d.]+%\); for another one give another --"
    assert re.search(done, again.log("server"))
    assert "going on with" not in again.log("server")
    assert json.loads((tmp_path / "run" / "live.json").read_text())["round"] == 5
    assert_same_result(again, undisturbed)
    again.close()


def test_without_its_checkpoints_a_run_keeps_its_records(undisturbed: Federation, tmp_path: Path) -> None:
    """Whoever removes them, to save room or because one was damaged, has not asked for an empty history."""
    again = Federation(tmp_path)
    shutil.copytree(undisturbed.folder / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    names = ("rounds.jsonl", "traffic.jsonl", "model.safetensors")
    before = [(tmp_path / "run" / name).read_bytes() for name in names]
    again.start("server", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "run", *FLAGS)
    assert again.exit_code("server") == 1
    said = again.log("server").splitlines()[-1]
    assert "rounds.jsonl has 5 rounds, but no checkpoint is left; put checkpoints/ back" in said
    assert [(tmp_path / "run" / name).read_bytes() for name in names] == before
    again.close()


def test_the_run_directory_is_whole_after_every_kill(federation: Federation) -> None:
    """Lines of rounds.jsonl are whole, and there are never more checkpoints than are kept."""
    federation.address = lasting_address()
    start_clients(federation)
    for r in (1, 2, 3):
        # One round each: it is in a checkpoint, and its record is still to be written.
        name = f"server{r}"
        federation.server(
            *FLAGS, listen=federation.address, name=name, through=trap("kill", "after the checkpoint")
        )
        federation.wait_for_death(name)
        lines = federation.rounds() if r > 1 else []
        assert [line["round"] for line in lines] == list(range(1, r))
        checkpoints = list((federation.folder / "run" / "checkpoints").glob("round-*.safetensors"))
        assert len(checkpoints) == min(r, 3)
    federation.server(*FLAGS, listen=federation.address)
    federation.finish()
    assert len(federation.rounds()) == 5


def test_a_run_of_the_release_before_formats_goes_on_to_the_same_result(tmp_path: Path) -> None:
    """tests/data/run-format-1 was left by that release, killed after the checkpoint of round 2.

    Its rounds were trained on another processor, which rounds a little differently.
    """
    old, new = Federation(tmp_path / "old"), Federation(tmp_path / "new")
    shutil.copytree(Path(__file__).parent / "data" / "run-format-1", old.folder / "run")
    try:
        for federation in (old, new):
            federation.server(*FIRST_FLAGS)
            start_clients(federation)
            federation.finish()
        assert "after round 2 of 4" in old.log("server")
        assert "NOT in the model" not in old.log("server"), "its records do not say who took part"
        for file in ("model", "control"):
            ours, theirs = old.tensors(file), new.tensors(file)
            assert ours.keys() == theirs.keys()
            for name, tensor in ours.items():
                torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5)
        assert [(line["round"], line["updates"]) for line in old.rounds()] == [(r, 2) for r in range(1, 5)]
        assert old.rounds()[0]["format"] == 2
    finally:
        old.close()
        new.close()
