"""Engines: runs end at a target, after a failure of their data, with whoever started them; and go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.events import Event, unheard
from common.records.conformal import CONFORMAL
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Kind, finished_run, outcome_after, outcome_of
from fedlab.engine.running import run_cells
from fedlab.events import RunFinished, RunsPlanned
from fedlab.processes.nursery import Nursery
from fedlab.reports.runs import read_run
from tests.processes import Federation, children, descendants, forked_children, wait_for_end, wait_until
from tests.test_cli import invoke

TINY: dict[str, object] = {"model": "mlp", "num_clients": 2, "rounds": 2, "local_steps": 5}
ENDLESS: dict[str, object] = TINY | {"rounds": 100_000, "local_steps": 20}


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """Runs that start at once."""
    with forked_children():
        yield


def rounds_of(run_dir: Path) -> int:
    """Rounds that have closed so far."""
    path = run_dir / "rounds.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_a_run_ends_once_it_has_reached_the_accuracy_at_which_it_may(tmp_path: Path) -> None:
    cell = Cell.of(ENDLESS, stop_at=0.3)
    run_cells([cell], tmp_path, EngineChoice(), unheard)
    outcome = outcome_after(cell, tmp_path)
    assert outcome.kind is Kind.STOPPED
    assert outcome.usable is not None
    accuracies = [record.accuracy or 0 for record in outcome.usable.rounds]
    assert all(accuracy < 0.3 <= accuracies[-1] for accuracy in accuracies[:-1])
    assert not (tmp_path / cell.key / CONFORMAL).exists()
    told: list[Event] = []
    run_cells([cell], tmp_path, EngineChoice(), told.append)
    assert told == [RunsPlanned(finished=1, total=1)]
    assert outcome_of(Cell.of(ENDLESS), tmp_path) is None, "all rounds are more than those up to a target"


def test_cells_that_differ_in_where_they_may_stop_are_one_run(tmp_path: Path) -> None:
    cells = [Cell.of(TINY, stop_at=0.01), Cell.of(TINY), Cell.of(TINY, stop_at=0.02)]
    told: list[Event] = []
    run_cells(cells, tmp_path, EngineChoice(jobs=3), told.append)
    assert told[0] == RunsPlanned(finished=0, total=1)
    kinds = [outcome_after(cell, tmp_path).kind for cell in cells]
    assert kinds == [Kind.STOPPED, Kind.FINISHED, Kind.STOPPED]


def test_who_is_interrupted_leaves_no_process_and_goes_on_later(tmp_path: Path) -> None:
    slow = ENDLESS | {"eta_l": 0.01}
    quick, endless = Cell.of(TINY), Cell.of(slow)

    def interrupt(event: Event) -> None:
        if isinstance(event, RunFinished):
            wait_until(lambda: rounds_of(tmp_path / endless.key) > 1, "rounds of the other run close")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells([quick, endless], tmp_path, EngineChoice(jobs=2), interrupt)
    live = json.loads((tmp_path / endless.key / "live.json").read_text())
    assert live["ended"] is not None, "it was asked to end, and has said good-bye"
    finished_run(quick, tmp_path)
    assert outcome_of(endless, tmp_path) is None
    before = read_run(tmp_path / endless.key)
    later = Cell.of(slow, stop_at=0.01 + max(record.accuracy or 0 for record in before.rounds))
    run_cells([quick, later], tmp_path, EngineChoice(jobs=2), unheard)
    after = finished_run(later, tmp_path)
    assert after.config.run_id == before.config.run_id
    assert after.rounds[: len(before.rounds) - 1] == before.rounds[:-1], "these were not run again"
    assert len(after.rounds) > len(before.rounds) - 1


@pytest.mark.slow
def test_who_has_forked_the_runs_may_be_killed_and_those_that_come_later_have_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real nursery: what it had forked ends with it and has failed, and runs the next time."""
    monkeypatch.setattr("fedlab.engine.local.Nursery", Nursery)
    quick, endless, last = Cell.of(TINY), Cell.of(ENDLESS), Cell.of(TINY | {"seed": 1})
    others = {*children(os.getpid())}

    def kill(event: Event) -> None:
        if isinstance(event, RunFinished) and event.key == quick.key:
            wait_until(lambda: rounds_of(tmp_path / endless.key) > 1, "rounds of the other run close")
            (nursery,) = {*children(os.getpid())} - others
            os.kill(nursery, signal.SIGKILL)
            wait_for_end(nursery)

    run_cells([quick, endless, last], tmp_path, EngineChoice(jobs=2), kill)
    finished_run(quick, tmp_path)
    finished_run(last, tmp_path)
    assert outcome_after(endless, tmp_path).kind is Kind.FAILED


def test_data_that_cannot_be_had_fail_the_cells_that_need_them_and_no_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for part in ("images.npy", "labels.npy", "classes.json"):
        (data / f"cifar10-train-{part}").write_bytes(b"damaged")
    other = Cell.of(TINY | {"dataset": "cifar10", "data_dir": str(data)})
    run_cells([other, Cell.of(TINY)], tmp_path, EngineChoice(), unheard)
    outcome = outcome_after(other, tmp_path)
    assert outcome.kind is Kind.FAILED
    assert "cifar10-train-images.npy is damaged" in outcome.reason
    assert not (tmp_path / f"{other.key}.log").exists(), "it was not even started"
    finished_run(Cell.of(TINY), tmp_path)


def test_an_address_of_a_cluster_is_for_the_engine_that_has_one() -> None:
    with pytest.raises(ConfigError, match="--ray-address is for --engine ray"):
        EngineChoice(ray_address="auto")
    with pytest.raises(ConfigError, match="--device cuda:1 names a GPU of one machine"):
        EngineChoice(name="ray", device="cuda:1")
    refused = invoke("fedlab", "reproduce", "table1", "--ray-address", "auto")
    assert refused.exit_code == 2


@pytest.mark.slow
def test_an_experiment_that_is_killed_repeats_at_most_one_round(federation: Federation) -> None:
    """SIGKILL of the command in the middle of a run: its processes go with it, and the next start goes on."""
    folder = federation.folder
    (folder / "one.toml").write_text(
        'title = "one"\n[settings]\nmodel = "mlp"\nnum-clients = 2\nrounds = 40\nlocal-steps = 10\n'
        '[methods.fedpvr]\nalgorithm = "fedpvr"\n[report]\nseeds = 1\n'
    )
    command = ("fedlab", "sweep", "one.toml", "--out", "out")
    federation.start("first", *command)

    runs = folder / "out" / "runs"
    (begun,) = wait_until(lambda: [*runs.glob("*/rounds.jsonl")], "a run begins")
    found = begun.parent
    wait_until(lambda: rounds_of(found) >= 15, "rounds close")
    pids = descendants(federation.processes["first"].pid)
    assert pids
    os.kill(federation.processes["first"].pid, signal.SIGKILL)
    federation.wait_for_death("first")
    wait_for_end(*pids)
    before = rounds_of(found)
    assert 15 <= before < 40
    federation.start("second", *command)
    assert federation.exit_code("second") == 0, federation.log("second")
    events = [json.loads(line) for line in (found / "events.jsonl").read_text().splitlines()]
    closed = [event["round"] for event in events if event.get("event") == "round_closed"]
    assert len(closed) <= 41
    assert rounds_of(found) == 40
