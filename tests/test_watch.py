"""Watching a run, waiting for its end, listing runs: the same answers from its directory and its server."""

from __future__ import annotations

import io
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from common.events import unheard
from common.records.base import FORMAT
from common.records.rounds import read_rounds
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.console.directory import Directory
from fedserver.console.frame import Frame, SeenClient, SeenEvaluation, SeenEvent, changes
from fedserver.console.screen import duration, screen, size, sparkline
from tests.processes import Federation, wait_until
from tests.test_cli import invoke

FLAGS = "--model problem:network --dataset problem:data --local-steps 1 --num-clients 2"
BASE = Frame(
    source="runs/a",
    run_id="0a1b2c",
    algorithm="fedpvr",
    model="cnn",
    dataset="digits",
    phase="training",
    round=3,
    rounds=20,
)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over."""
    run = tmp_path_factory.mktemp("runs") / "a"
    simulate(RunConfig(num_clients=3, rounds=4, local_steps=1, model="mlp"), run, unheard)
    return run


def drawn(frame: Frame, columns: int = 80, lines: int = 24) -> list[str]:
    """The screen as plain lines."""
    console = Console(file=io.StringIO(), width=columns, height=lines)
    console.print(screen(frame, columns, lines))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_killed_client_is_named_and_both_sources_and_the_script_hear_of_the_end(
    federation: Federation,
) -> None:
    """One run: watched and waited for in its directory and at its server."""
    address = federation.server(*FLAGS.split(), "--rounds", "3", "--deadline", "600")
    places = {"directory": ["run"], "server": ["--server", address]}
    for name, where in places.items():
        federation.start(f"lines-{name}", "fedserver", "watch", *where)
        federation.start(f"json-{name}", "fedserver", "watch", "--json", *where)
        federation.start(f"wait-{name}", "fedserver", "wait", *where)
    for name in places:
        federation.wait_for(f"lines-{name}", "waiting, 0 of 2 clients are here")
        federation.wait_for(f"json-{name}", '"phase": "waiting"')
    federation.client("a")
    federation.client("b", through=("tests.killpoint", "kill", "before training", "2"))
    federation.wait_for_death("b")
    federation.wait_for("lines-directory", "b not connected")
    federation.client("b")
    federation.finish()
    for name in places:
        assert federation.log(f"lines-{name}").splitlines()[-1].endswith(" finished, round 3 of 3")
        last = json.loads(federation.log(f"json-{name}").splitlines()[-1])
        accuracies = [record["accuracy"] for record in federation.rounds()]
        assert [each["accuracy"] for each in last["evaluations"]] == accuracies
        assert (last["phase"], last["round"], last["lost"]) == ("finished", 3, [])
        assert "is finished after round 3, accuracy" in federation.log(f"wait-{name}")


def test_a_stopped_server_ends_a_wait_with_1_and_a_timeout_with_124(federation: Federation) -> None:
    address = federation.server(*FLAGS.split())
    federation.start("wait-directory", "fedserver", "wait", "run")
    federation.start("wait-server", "fedserver", "wait", "--server", address)
    late = invoke("fedserver", "wait", str(federation.folder / "run"), "--timeout", "0.2")
    assert late.exit_code == 124
    assert late.stderr.startswith("not over after 0.2 s: ")
    federation.start("ready", "fedserver", "watch", "--server", address)
    federation.wait_for("ready", "waiting, 0 of 2")
    federation.processes["server"].send_signal(signal.SIGTERM)
    assert federation.exit_code("server") == 0
    for name in ("wait-directory", "wait-server", "ready"):
        assert federation.exit_code(name) == 1
    assert "stopped by SIGTERM" in federation.log("wait-directory")
    assert "the server is stopping" in federation.log("wait-server")


def test_a_finished_run_has_its_exit_code_3_if_somebody_is_missing(simulated: Path, tmp_path: Path) -> None:
    assert invoke("fedserver", "wait", str(simulated)).exit_code == 0
    there = tmp_path / "run"
    there.mkdir()
    for name in ("config.json", "live.json", "conformal.json"):
        (there / name).write_bytes((simulated / name).read_bytes())
    records = [json.loads(line) for line in (simulated / "rounds.jsonl").read_text().splitlines()]
    records[-1]["absent"] = {records[-1]["clients"].pop(): "left: enough"}
    (there / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    ended = invoke("fedserver", "wait", str(there))
    assert ended.exit_code == 3
    assert ", without client-2" in ended.stderr


def test_what_is_to_be_watched_is_said_once_and_is_there(tmp_path: Path) -> None:
    for command in ("watch", "wait"):
        assert invoke("fedserver", command).exit_code == 2
        assert invoke("fedserver", command, "run", "--server", "localhost:1").exit_code == 2
    nothing = invoke("fedserver", "watch", str(tmp_path))
    assert (nothing.exit_code, nothing.stderr) == (
        1,
        f"Error: {tmp_path} holds no run; a run directory has config.json\n",
    )


def test_a_list_has_finished_stopped_damaged_and_later_runs(simulated: Path, tmp_path: Path) -> None:
    for name in ("stopped", "damaged", "later", "no run"):
        (tmp_path / name).mkdir()
    config = (simulated / "config.json").read_text()
    (tmp_path / "stopped" / "config.json").write_text(config)
    (tmp_path / "damaged" / "config.json").write_text(config[:100])
    later = json.loads(config) | {"format": FORMAT + 1}
    (tmp_path / "later" / "config.json").write_text(json.dumps(later))
    (tmp_path / "finished").symlink_to(simulated)
    found = {
        Path(run["path"]).name: run
        for run in json.loads(invoke("fedserver", "ls", str(tmp_path), "--json").stdout)
    }
    assert {name: run["state"] for name, run in found.items()} == {
        "stopped": "stopped",
        "damaged": "damaged",
        "later": "later release",
        "finished": "finished",
    }
    records = read_rounds(simulated)
    finished = found["finished"]
    assert (finished["round"], finished["rounds"], finished["accuracy"]) == (4, 4, records[-1].accuracy)
    assert finished["bytes"] == sum(record.bytes.total for record in records)
    table = invoke("fedserver", "ls", str(tmp_path)).stdout
    assert f"finished  {finished['run_id']}  fedpvr" in table
    assert "expected JSON" in table
    assert f"got {FORMAT + 1}; a later release has written it: use that one" in table
    assert invoke("fedserver", "ls", str(tmp_path / "nowhere")).exit_code == 2


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (40, 12)])
def test_a_crowd_fits_the_screen_and_does_not_hide_who_is_missing(columns: int, lines: int) -> None:
    clients = [SeenClient(name=f"clinic-{k}", state="training", examples=k) for k in range(200)]
    clients[150] = SeenClient(name="clinic-150", state="gone", why="no sign of life for 60 s")
    frame = replace(
        BASE,
        clients=tuple(clients),
        evaluations=tuple(SeenEvaluation(round=r, accuracy=r / 300, loss=None) for r in range(1, 300)),
        bytes={"down": {"model": 10**12, "other": 5}, "up": {"model": 1}},
        events=tuple(SeenEvent(time="10:00:00", text=f"event {k}") for k in range(50)),
    )
    found = drawn(frame, columns, lines)
    assert len(found) <= max(lines, 16)
    assert max(map(len, found)) <= columns
    assert any("clinic-150" in line and "gone" in line for line in found)
    assert any(line.startswith("and 1") and line.endswith("others") for line in found)
    assert any("event 49" in line for line in found)


def test_words_of_peers_are_text() -> None:
    said = "[bold red]x[/] [link=http://a]"
    frame = replace(BASE, clients=(SeenClient(name="a", state="left", why=said),), model=said)
    assert sum(said in line for line in drawn(frame, 120)) == 2


def test_changes_tell_of_rounds_evaluations_and_who_comes_and_goes() -> None:
    here, gone = SeenClient(name="a", state="training"), SeenClient(name="a", state="gone", why="silent")
    first = replace(BASE, clients=(here,))
    then = replace(
        first, round=4, clients=(gone,), evaluations=(SeenEvaluation(round=3, accuracy=0.5, loss=1.0),)
    )
    assert [event.text for event in changes(None, first)] == ["training, round 3 of 20"]
    assert [event.text for event in changes(first, then)] == [
        "round 3: accuracy 50.00%",
        "training, round 4 of 20",
        "a gone: silent",
    ]
    assert [event.text for event in changes(then, replace(then, clients=(here,)))] == ["a is here again"]
    assert not list(changes(then, then))


def test_numbers_for_people() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([2.0, 2.0], 1) == "▁"
    assert [size(n) for n in (0, 9_999, 10_000, 312_615, 5 * 10**9)] == [
        "0 B",
        "9,999 B",
        "10.0 kB",
        "313 kB",
        "5,000 MB",
    ]
    assert [duration(s) for s in (8.2, 200, 7500, 200_000)] == ["8 s", "3 min", "2 h 5 min", "2 d 7 h"]


def test_a_process_that_is_killed_counts_as_stopped_once_patience_is_over(federation: Federation) -> None:
    federation.server(*FLAGS.split())
    run = Directory(federation.folder / "run", first_s=60)
    federation.kill("server")
    assert wait_until(lambda: run.look(0.0).over, "the run counts as stopped")
    patient = Directory(federation.folder / "run", patience_s=600)
    assert not patient.look(0.0).over
