"""`fedserver run --canary`: a rehearsal that finds who is not ready, and of which nothing is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from common.events import unheard
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.events.canary import CanaryAnswer
from fedserver.rehearsal.report import ClientAnswer
from fedserver.run.round import Excused, Update
from tests.killpoint import trap
from tests.processes import Federation, lasting_address
from tests.test_cli import invoke

SETTINGS: dict[str, Any] = {
    "model": "mlp",
    "num_clients": 2,
    "rounds": 3,
    "local_steps": 5,
    "seed": 4,
}
SPARSE: dict[str, Any] = {"codec": ("topk:0.3",)}
DERIVED = {"variates": "derived", "algorithm": "scaffold"}
Simulated = Callable[..., dict[str, bytes]]


def flags(**changes: Any) -> list[str]:
    """The settings as flags of a server."""
    settings = {name: value[0] if isinstance(value, tuple) else value for name, value in changes.items()}
    named = (SETTINGS | settings).items()
    return [text for name, value in named for text in (f"--{name.replace('_', '-')}", str(value))]


def tensors(folder: Path) -> dict[str, bytes]:
    """x and c, to the bit."""
    files = [load_file(folder / f"{file}.safetensors") for file in ("model", "control")]
    return {f"{k} {name}": array.tobytes() for k, file in enumerate(files) for name, array in file.items()}


def start_clients(federation: Federation, *others: str) -> None:
    """Both; `others` are flags of the second."""
    federation.client("client-0")
    federation.client("client-1", *others)


@pytest.fixture
def simulated(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """What comes of the same run without a rehearsal."""
    monkeypatch.chdir(federation.folder)

    def run(**changes: Any) -> dict[str, bytes]:
        simulate(RunConfig(**(SETTINGS | changes)), federation.folder / "simulated", unheard)
        return tensors(federation.folder / "simulated")

    return run


@pytest.mark.parametrize(
    "changes",
    [SPARSE, pytest.param(DERIVED, marks=pytest.mark.slow), pytest.param({}, marks=pytest.mark.slow)],
)
def test_nothing_of_a_rehearsal_is_left_but_its_bytes(
    federation: Federation, simulated: Simulated, changes: dict[str, Any]
) -> None:
    federation.server(*flags(**changes), "--canary", "--capture", "run.fedwire")
    start_clients(federation, "--capture", "client.fedwire")
    federation.finish()
    assert tensors(federation.folder / "run") == simulated(**changes)
    log = federation.log("server")
    assert log.count(" go     down ") == 2
    assert log.index("canary: go for all 2 clients") < log.index("round 1/3")
    assert "canary: 3 steps" in federation.log("client-0")
    assert not [*federation.folder.glob("run/spool/*")]
    assert [record["round"] for record in federation.rounds()] == [1, 2, 3]
    assert not any("canary" in record["bytes"]["down"] for record in federation.rounds())
    whole = json.loads((federation.folder / "run" / "traffic.json").read_text())
    assert whole["outside"]["up"]["canary"] == whole["bytes"]["up"]["canary"] > 0
    assert set(whole["traffic"]["client-1"]["down"]) >= {"canary", "model"}
    statistics = json.loads(invoke("fedwire", "stats", "run.fedwire", "--run-dir", "run", "--json").output)
    assert statistics["differences"] == []
    for capture in ("run.fedwire", "client.fedwire"):
        replayed = json.loads(invoke("fedwire", "replay", capture, "--json").output)
        assert [verdict["round"] for verdict in replayed] == [1, 2, 3]


def test_a_client_that_is_not_ready_ends_the_run_before_it_begins_and_the_same_command_goes_on(
    federation: Federation, simulated: Simulated
) -> None:
    address = federation.server(*flags(), "--canary", listen=lasting_address(), name="first")
    start_clients(federation, "--max-steps", "2")
    assert federation.exit_code("first") == 1
    log = federation.log("first")
    assert "canary: client-0         go " in log
    assert (
        "canary: client-1         NO GO  left: rule max_steps: a round has 3 local steps, this client takes 2"
        in log
    )
    assert "Error: canary: no go for 1 of 2 clients, nothing was trained: client-1: left:" in log
    assert federation.exit_code("client-0") == 1
    assert "the run ended early: canary: no go" in federation.log("client-0")
    assert federation.exit_code("client-1") == 1
    assert not (federation.folder / "run" / "rounds.jsonl").read_text()
    assert not [*federation.folder.glob("run/checkpoints/*.safetensors")]
    federation.processes.clear()
    federation.server(*flags(), "--canary", listen=address)
    start_clients(federation)
    federation.finish()
    assert tensors(federation.folder / "run") == simulated()


SERVER_TRAPS = [("before the update counts", 2), ("before the checkpoint", 1), ("before broadcast", 2)]
CLIENT_TRAPS = [("mid-training", 2), ("after the update is kept", 1), ("before the variate is settled", 1)]


@pytest.mark.parametrize(
    ("point", "count"),
    [SERVER_TRAPS[0], *(pytest.param(*t, marks=pytest.mark.slow) for t in SERVER_TRAPS[1:])],
)
def test_a_server_killed_in_or_right_after_a_rehearsal_rehearses_again(
    federation: Federation, simulated: Simulated, point: str, count: int
) -> None:
    """Its clients are wherever they are: waiting, training or handing in, the rehearsal or round 1."""
    through: Sequence[str] = trap("kill", point, count)
    address = federation.server(
        *flags(**SPARSE), "--canary", listen=lasting_address(), name="first", through=through
    )
    start_clients(federation)
    federation.wait_for_death("first")
    federation.server(*flags(**SPARSE), "--canary", listen=address)
    federation.finish()
    assert "canary: go for all 2 clients" in federation.log("server")
    assert tensors(federation.folder / "run") == simulated(**SPARSE)


@pytest.mark.slow
def test_a_server_killed_in_a_rehearsal_may_do_without_the_next_time(
    federation: Federation, simulated: Simulated
) -> None:
    through = trap("kill", "before the update counts", 2)
    address = federation.server(*flags(), "--canary", listen=lasting_address(), name="first", through=through)
    start_clients(federation)
    federation.wait_for_death("first")
    federation.server(*flags(), listen=address)
    federation.finish()
    assert tensors(federation.folder / "run") == simulated()


@pytest.mark.slow
@pytest.mark.parametrize(("point", "count"), CLIENT_TRAPS)
def test_a_client_killed_in_a_rehearsal_takes_part_in_it_once_more(
    federation: Federation, simulated: Simulated, point: str, count: int
) -> None:
    federation.server(*flags(**SPARSE), "--canary")
    federation.client("client-0")
    federation.client("client-1", process="first", through=trap("kill", point, count))
    federation.wait_for_death("first")
    federation.client("client-1")
    federation.finish()
    assert tensors(federation.folder / "run") == simulated(**SPARSE)


def test_rows_of_the_table() -> None:
    update = Update("a", 4, steps=3, examples=7, loss=0.5, train_seconds=1.25, pull_seconds=0.75)
    row = ClientAnswer("a", 7, update, up_s=2.0).row()
    assert row.text().endswith("go     down  0.75 s  train  1.25 s  up  2.00 s  loss 0.5000  7 examples")
    older = ClientAnswer("a", 7, Update("a", 4, 3, 7, 0.5), up_s=2.0).row()
    assert "down       -  train" in older.text(), "an earlier release does not tell"
    lost = ClientAnswer("b", 7, Excused("b", "no answer in time"), up_s=0.0).row()
    assert lost == CanaryAnswer(client="b", examples=7, reason="no answer in time")
    assert lost.level > row.level
