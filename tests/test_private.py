"""What holds updates, variates or messages is its owner's alone, from the moment it is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.events import unheard
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.wire.capture import CaptureWriter
from fedclient.store.state import StateDir
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from tests.killpoint import trap
from tests.processes import Federation

FOR_PEOPLE = {
    "config.json",
    "rounds.jsonl",
    "traffic.json",
    "traffic.jsonl",
    "conformal.json",
    "cka.jsonl",
    "live.json",
    "events.jsonl",
}
LAYOUT = Layout([TensorSpec("w", "float32", (3,), Purpose.CLIENT_CONTROL)])


def readable_by_others(folder: Path) -> list[str]:
    """Everything in a folder that its group or others could read, but for what is meant for people."""
    found = [path for path in folder.rglob("*") if path.stat().st_mode & 0o077]
    return sorted(str(path.relative_to(folder)) for path in found if path.name not in FOR_PEOPLE)


@pytest.fixture
def no_umask() -> Iterator[None]:
    """A process that asks for no privacy."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_nobody_else_reads_a_run_its_clients_or_captures(federation: Federation) -> None:
    flags = "--model mlp --dataset digits --num-clients 2 --rounds 3 --local-steps 2"
    federation.server(
        *flags.split(), *("--aggregation", "median", "--capture", "s"), through=trap("stop", "mid-fold", 3)
    )
    for name in ("a", "b"):
        federation.client(name, "--capture", f"{name}.fedwire")
    federation.wait_for_stop("server")
    run, state = federation.folder / "run", federation.folder / "state"
    there = {path.suffix for path in run.glob("spool/*/*")}
    assert there == {".update", ".before"}, "a round is open, and the one before counted"
    assert len([*state.glob("*/run-*/update.parcel")]) == 2
    for again in (False, True):
        assert readable_by_others(run) == readable_by_others(state) == []
        if not again:
            federation.go_on("server")
            federation.finish()
    captures = [federation.folder / name for name in ("s", "a.fedwire", "b.fedwire")]
    assert [path.stat().st_mode & 0o777 for path in captures] == [0o600] * 3


def test_a_umask_that_allows_everything_changes_nothing(tmp_path: Path, no_umask: None) -> None:
    simulate(RunConfig(num_clients=2, rounds=1, local_steps=1, norm_bound=50.0), tmp_path / "run", unheard)
    assert (tmp_path / "run" / "config.json").stat().st_mode & 0o777 == 0o666, "that is for people"
    with StateDir(tmp_path / "state") as state:
        files = state.of_run("a1", "clinic", "f00")
        files.write(1, LAYOUT, LAYOUT.allocate())
        files.store_update([b"x"])
    CaptureWriter(tmp_path / "capture", unheard).close()
    assert readable_by_others(tmp_path) == ["run"]
