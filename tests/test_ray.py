"""Experiments on a real Ray cluster of two nodes; `make test-ray` installs Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import wait_until
from tests.test_docs import ROOT

SWEEP = """
title = "Two nodes"

[settings]
model = "mlp"
num-clients = 2
rounds = 40
local-steps = 20

[methods.fedavg]
algorithm = "fedavg"

[methods.fedpvr]
algorithm = "fedpvr"

[methods.wild]
algorithm = "fedavg"
eta_l = 1e30

[report]
seeds = 2
score = 3
targets = [0.5]
"""
LIMIT_S = 900
PROGRAM = [sys.executable, "-P", "-m", "fedlab"]


@contextmanager
def cluster() -> Iterator[subprocess.Popen[str]]:
    """Two nodes with a CPU each."""
    command = [sys.executable, "-m", "tests.ray_cluster"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def said(process: subprocess.Popen[str], word: str) -> str:
    """What follows a word at the beginning of a line."""
    assert process.stdout is not None
    return next(line for line in process.stdout if line.startswith(word)).removeprefix(word).strip()


@pytest.mark.ray
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_lost_node_costs_only_time_and_the_table_is_that_of_one_machine(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(SWEEP)
    sweep = [*PROGRAM, "sweep", "two.toml", "--json"]
    with cluster() as nodes:
        flags = ["--engine", "ray", "--ray-address", said(nodes, "address "), "--out", "ray"]
        with subprocess.Popen([*sweep, *flags], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:

            def under_way() -> bool:
                runs = [path for path in tmp_path.glob("ray/runs/*/rounds.jsonl") if path.stat().st_size]
                return len([path for path in runs if not (path.parent / "conformal.json").exists()]) == 2

            wait_until(under_way, "a run on each of the two nodes")
            assert nodes.stdin is not None
            nodes.stdin.write("lose\n")
            nodes.stdin.flush()
            said(nodes, "lost")
            on_ray, _ = running.communicate(timeout=LIMIT_S)
        assert running.returncode == 0
    local = subprocess.run(
        [*sweep, "--jobs", "2", "--out", "local"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True
    )
    found, expected = (json.loads(text) | {"report": ""} for text in (on_ray, local.stdout))
    assert found == expected
    outcomes = [how for entry in found["entries"] for how in entry["outcomes"].values()]
    assert [how.partition(" ")[0] for how in outcomes] == ["finished"] * 4 + ["diverged"] * 2
    assert not list(tmp_path.glob("ray/runs/.ray-*"))


@pytest.mark.ray
@pytest.mark.timeout(LIMIT_S)
def test_a_cluster_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(SWEEP)
    flags = ["--engine", "ray", "--ray-address", "127.0.0.1:1"]
    ended = subprocess.run(
        [*PROGRAM, "sweep", "two.toml", *flags], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 2
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("Error: --ray-address 127.0.0.1:1: no Ray cluster can be joined there")
