"""The tool behind `make same-bits` finds what differs, and only that."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.same_bits.__main__ import Verdict, checked, checks
from tests.same_bits.cases import CASES, MIXED
from tests.same_bits.compare import compare
from tests.same_bits.federation import Processes, Run, federate
from tests.same_bits.forker import Forker, RunFailure
from tests.same_bits.revision import ROOT, check_out


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    """Starts programs of this tree."""
    with closing(Forker(ROOT)) as forker:
        yield forker


@pytest.fixture(scope="module")
def run_dir(forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of two rounds has left behind."""
    folder = tmp_path_factory.mktemp("federation") / "simulated"
    return federate(Run("fp32", "ours", None), {"ours": forker}, folder)


@pytest.fixture
def other(run_dir: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(run_dir, tmp_path / "other")


def test_a_copy_is_equal(run_dir: Path, other: Path) -> None:
    found = compare(run_dir, other)
    assert (found.differences, found.notes) == ([], [])
    assert found.size.endswith("2 rounds")


@pytest.mark.parametrize("file", ["model", "control"])
def test_one_bit_of_a_tensor_is_a_difference(run_dir: Path, other: Path, file: str) -> None:
    path = other / f"{file}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    [difference] = compare(run_dir, other).differences
    assert difference.startswith(f"{file}: ")
    assert "differs in 1 of" in difference


@pytest.mark.parametrize(
    ("field", "differs"),
    [("updates", True), ("up control", True), ("down model", True), ("up other", False), ("loss", False)],
)
def test_payload_and_updates_count_and_framing_is_noted(
    run_dir: Path, other: Path, field: str, differs: bool
) -> None:
    path = other / "rounds.jsonl"
    *others, last = map(json.loads, path.read_text().splitlines())
    if " " in field:
        direction, purpose = field.split()
        last["bytes"][direction][purpose] += 1
    else:
        last[field] += 1
    last["new"] = "a field that has come"
    path.write_text("".join(json.dumps(record) + "\n" for record in [*others, last]))
    found = compare(run_dir, other)
    assert (len(found.differences), len(found.notes)) == ((1, 0) if differs else (0, 1))
    assert field.split()[-1] in (found.differences + found.notes)[0]


def test_a_missing_round_is_a_difference(run_dir: Path, other: Path) -> None:
    first, _ = (other / "rounds.jsonl").read_text().splitlines()
    (other / "rounds.jsonl").write_text(first + "\n")
    assert compare(run_dir, other).differences == ["rounds.jsonl: 2 rounds -> 1"]


def test_every_case_is_simulated_and_goes_over_grpc() -> None:
    names = {check.name for check in checks("*")}
    assert names >= {f"{case} {kind}" for case in CASES for kind in ("simulated", "grpc")}
    assert set(MIXED) <= CASES.keys()


def test_a_revision_is_checked_out_whole(tmp_path: Path, repository: None) -> None:
    check_out("HEAD", tmp_path / "base")
    assert (tmp_path / "base" / "pyproject.toml").exists()
    with pytest.raises(SystemExit, match="no revision 'nowhere'"):
        check_out("nowhere", tmp_path)


def _verdicts(base: Path, folder: Path, only: str, changed: list[str]) -> dict[str, Verdict]:
    results = checked({"base": base, "ours": ROOT}, folder, only, changed)
    return {check.name: verdict for check, verdict in results}


@pytest.mark.slow
def test_a_tree_equals_itself_and_a_change_that_did_not_happen_is_reported(tmp_path: Path) -> None:
    verdicts = _verdicts(ROOT, tmp_path, "fp16 simulated", ["fp16"])
    assert {name: verdict.word for name, verdict in verdicts.items()} == {"fp16 simulated": "UNCHANGED"}


@pytest.mark.slow
def test_servers_and_clients_of_two_trees_are_mixed(tmp_path: Path) -> None:
    verdicts = _verdicts(ROOT, tmp_path, "fedpvr derived [gb]*", [])
    assert {name: verdict.word for name, verdict in verdicts.items()} == dict.fromkeys(
        ("fedpvr derived grpc", "fedpvr derived base server", "fedpvr derived base clients"), "equal"
    )


@pytest.mark.slow
def test_a_tree_with_another_protocol_refuses_and_one_that_computes_otherwise_differs(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT, other, ignore=shutil.ignore_patterns(".*", "tests", "runs"))
    _edit(other, r"^PROTOCOL_VERSION = \d+$", "PROTOCOL_VERSION = 999")
    _edit(other, r"^    eta_l: float = TRAINING.setting\(0.1,", "    eta_l: float = TRAINING.setting(0.2,")
    verdicts = _verdicts(other, tmp_path / "runs", "fedpvr [gb]*", [])
    words = [verdicts[f"fedpvr {name}"].word for name in ("grpc", "base server", "base clients")]
    assert words == ["DIFFERS", "refused", "refused"], verdicts


def _edit(tree: Path, old: str, new: str) -> None:
    """Replaces the lines of a tree that are like this."""
    pattern = re.compile(old, re.MULTILINE)
    found = [path for path in tree.rglob("*.py") if pattern.search(path.read_text())]
    assert found, old
    for path in found:
        path.write_text(pattern.sub(new, path.read_text()))


def test_what_was_started_ends_with_the_block(forker: Forker, tmp_path: Path) -> None:
    with Processes(tmp_path / "federation") as processes:
        processes.start("server", forker, "fedserver", "run", "--listen", "127.0.0.1:0")
        address = processes.wait_for_line("server", r"listening on (\S+)")
        host, port = address.split(":")
        socket.create_connection((host, int(port))).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_program_that_fails_is_quoted(forker: Forker, tmp_path: Path) -> None:
    with Processes(tmp_path / "federation") as processes:
        processes.start("simulation", forker, "fedlab", "simulate", "--rounds", "0")
        with pytest.raises(RunFailure, match=r"(?s)simulation ended with 2:.*--rounds must be at least 1"):
            processes.wait_for_all()
