"""Whole runs in which S_svr changes: over gRPC, killed, replayed, with every kind of variate and codec."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.errors import ConfigError
from common.events import Event, unheard
from common.server_step import adaptive
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.events.rounds import SvrChanged
from fedwire.replay.replay import Replay
from fedwire.source import Capture
from tests.killpoint import trap
from tests.processes import Federation, lasting_address, without_metadata
from tests.scripted_svr import AFTER, THROUGH, scripted_choice

ROUNDS = len(AFTER) + 1
SETTINGS: dict[str, Any] = {
    **{"model": "problem:network", "dataset": "problem:data", "num_clients": 3, "rounds": ROUNDS},
    **{"local_steps": 2, "batch_size": 5, "alpha": 0.5, "seed": 3, "momentum": 0.5, "eta_l": 0.1},
    **{"svr": ("auto:1",), "eval_every": 0},
}
FLAGS = [
    *("--model", "problem:network", "--dataset", "problem:data", "--num-clients", "3"),
    *("--rounds", str(ROUNDS), "--local-steps", "2", "--batch-size", "5", "--alpha", "0.5", "--seed", "3"),
    *("--momentum", "0.5", "--eta-l", "0.1", "--svr", "auto:1", "--eval-every", "0"),
]
FILES = ("model.safetensors", "control.safetensors")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations here follow the script, and find the problem."""
    monkeypatch.setattr(adaptive, "next_choice", scripted_choice)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.chdir(Path(__file__).parent)


def run(folder: Path, heard: list[Event] | None = None, **settings: Any) -> list[dict[str, Any]]:
    """A simulated federation; returns its rounds."""
    simulate(RunConfig(**SETTINGS | settings), folder, unheard if heard is None else heard.append)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def modules(record: dict[str, Any]) -> set[str]:
    """The modules of S_svr in a round."""
    return {name.partition(".")[0] for name in record["svr"]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation of processes in which nothing went wrong, with a capture."""
    federation = Federation(tmp_path_factory.mktemp("undisturbed"))
    federation.server(*FLAGS, "--capture", "c.fedwire", through=THROUGH)
    start_clients(federation)
    federation.finish()
    yield federation
    federation.close()


def start_clients(federation: Federation, *names: str) -> None:
    """The clients of a simulation, or some of them."""
    for name in names or ("client-0", "client-1", "client-2"):
        federation.client(name)


def assert_same(federation: Federation, other: Federation) -> None:
    """The same x, c, sets and sizes, to the bit."""
    for file in ("model", "control"):
        assert federation.bytes(file) == other.bytes(file)
    for ours, theirs in zip(federation.rounds(), other.rounds(), strict=True):
        for key in ("round", "svr", "train_loss", "drift", "norms"):
            assert ours[key] == theirs[key], key


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("variates", ["explicit", "derived"])
def test_processes_and_a_simulation_agree_to_the_bit(
    undisturbed: Federation, tmp_path: Path, variates: str
) -> None:
    """Derived variates are the same training too: what enters has c and c_i sent once, and not again."""
    heard: list[Event] = []
    records = run(tmp_path / "run", heard, variates=variates)
    assert [modules(record) for record in records] == [set(), *AFTER]
    for file in FILES:
        assert without_metadata(tmp_path / "run" / file) == without_metadata(
            undisturbed.folder / "run" / file
        )
    assert [event.round for event in heard if isinstance(event, SvrChanged)] == [1, 2, 3, 5, 6, 7]
    if variates == "derived":
        assert not any(record["bytes"]["up"]["control"] for record in records)
        assert not records[4]["bytes"]["down"]["control"], "S_svr stays after round 4"


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    "more",
    [
        {"num_clients": 4, "clients_per_round": 2},
        {"num_clients": 4, "clients_per_round": 2, "variates": "derived", "weighting": "examples"},
        {"codec": ("int8", "control=fp16")},
        {"num_clients": 4, "clients_per_round": 2, "variates": "derived", "codec": ("topk:0.5",)},
        {"aggregation": "median", "norm_bound": 1.01},
        {"personal": ("4",), "codec": ("int8",)},
    ],
    ids=["some", "examples", "codecs", "residuals", "median", "personal"],
)
def test_c_is_the_center_of_the_variates(tmp_path: Path, more: dict[str, Any]) -> None:
    records = run(tmp_path / "run", **more)
    lasting = modules(records[-1])
    assert lasting == {"0"}
    newest = max((tmp_path / "run" / "checkpoints").glob("round-*.safetensors"))
    entered = len(AFTER)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    c, found = load_file(tmp_path / "run" / "control.safetensors"), []
    assert newest.name == f"round-{ROUNDS:06d}.safetensors"
    for seat in config["clients"]:
        files = sorted((tmp_path / "run" / "ledger").glob(f"client-{seat['index']:05d}-*"))
        late = [file for file in files if int(file.stem[-6:]) >= entered]
        found.append((seat["examples"], load_file(late[-1]) if late else None))
    for name, value in c.items():
        rows = np.stack([np.zeros_like(value) if c_i is None else c_i[name] for _, c_i in found])
        weights = [examples if more.get("weighting") else 1 for examples, _ in found]
        center = np.average(rows, axis=0, weights=weights)
        wanted = np.median(rows, axis=0) if "aggregation" in more else center
        np.testing.assert_allclose(value, wanted, atol=1e-4 if "codec" in more else 1e-12)


POINTS = ["after the fold", "before the checkpoint", "after the checkpoint", "mid-count", "before broadcast"]


@pytest.mark.parametrize(
    ("point", "count"),
    [
        pytest.param(
            point, count, marks=[] if count == 3 and point == "after the checkpoint" else pytest.mark.slow
        )
        for point in POINTS
        for count in (2, 3, 6, 7)
    ],
)
def test_a_killed_server_goes_on_with_the_same_sets(
    undisturbed: Federation, federation: Federation, point: str, count: int
) -> None:
    times = 3 * count if point == "mid-count" else count
    through = (*THROUGH, *trap("kill", point, times))
    address = federation.server(*FLAGS, listen=lasting_address(), name="first", through=through)
    start_clients(federation)
    federation.wait_for_death("first")
    federation.server(*FLAGS, listen=address, through=THROUGH)
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.parametrize(
    ("point", "count"),
    [
        pytest.param(point, count, marks=[] if count == 3 and "settled" in point else pytest.mark.slow)
        for point in ("a round has come", "after the variate is written", "before the variate is settled")
        for count in (2, 3, 5)
    ],
)
def test_a_killed_client_goes_on_with_the_variate_of_now(
    undisturbed: Federation, federation: Federation, point: str, count: int
) -> None:
    federation.server(*FLAGS, through=THROUGH)
    federation.client("client-1", process="first", through=trap("kill", point, count))
    start_clients(federation, "client-0", "client-2")
    federation.wait_for_death("first")
    start_clients(federation, "client-1")
    federation.finish()
    assert_same(federation, undisturbed)


def test_a_client_that_lost_its_disk_gets_the_variate_of_now(
    undisturbed: Federation, federation: Federation
) -> None:
    federation.server(*FLAGS, through=THROUGH)
    federation.client("client-1", process="first", through=trap("kill", "a round has come", 5))
    start_clients(federation, "client-0", "client-2")
    federation.wait_for_death("first")
    shutil.rmtree(federation.folder / "state" / "client-1")
    start_clients(federation, "client-1")
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.usefixtures("scripted")
def test_a_replay_makes_the_same_choices(undisturbed: Federation) -> None:
    with Capture(undisturbed.folder / "c.fedwire", pytest.fail) as capture:
        verdicts = Replay(capture, undisturbed.folder / "run").run()
    assert [(verdict.same, verdict.problems) for verdict in verdicts] == [(True, [])] * ROUNDS
    assert verdicts[-1].compared == "the run's final x and c"


def test_a_replay_notices_a_set_that_the_rule_does_not_choose(undisturbed: Federation) -> None:
    with Capture(undisturbed.folder / "c.fedwire", pytest.fail) as capture:
        first = Replay(capture, undisturbed.folder / "run").run()[0]
    assert first.same is False
    assert "S_svr differs" in first.problems[0]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"svr": ("auto", "4")}, "--svr auto stands alone"),
        ({"svr": ("auto:2",)}, "share of x's bytes above 0 and up to 1, got '2'"),
        ({"svr": ("auto:much",)}, "got 'much'"),
        ({"svr": ("auto",), "algorithm": "scaffold"}, "--svr goes with --algorithm fedpvr"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("(", r"\(")):
        RunConfig(**SETTINGS | more)


@pytest.mark.usefixtures("scripted")
def test_one_module_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compares modules, and the model has one"):
        run(tmp_path / "run", freeze=("0", "2"))


@pytest.mark.slow
def test_the_rule_finds_the_classifier_of_very_different_clients(tmp_path: Path) -> None:
    problem: dict[str, Any] = {
        "model": "cnn",
        "dataset": "digits",
        "num_clients": 6,
        "alpha": 0.1,
        "rounds": 4,
    }
    records = run(tmp_path / "run", **problem, svr=("auto",), local_steps=8, batch_size=32)
    assert records[-1]["svr"] == ["classifier.weight", "classifier.bias"]
    v, d = (records[-1]["bytes"]["up"][purpose] for purpose in ("control", "model"))
    assert 0 < v <= 0.1 * d
