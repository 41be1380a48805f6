"""Experiments: cells that are run once, tables, pictures and pages made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.algorithms.schedule import step_size
from common.bit_rate import bits_per_second
from common.errors import ConfigError, RunError
from common.events import Event, unheard
from common.page.charts import Curves, HeatMap, View
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Kind, finished_run, marks, outcome_of, usable
from fedlab.engine.running import run_cells
from fedlab.events import RunFinished, RunsPlanned
from fedlab.experiments.bench import Bench
from fedlab.reports import plots
from fedlab.reports.tables import Table
from tests.processes import forked_children
from tests.test_cli import invoke
from tests.test_page import documents, parsed


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """Runs that start at once."""
    with forked_children():
        yield


def drawn(html: str) -> list[dict[str, Any]]:
    """The pictures of a page."""
    charts: list[dict[str, Any]] = documents(parsed(html))["charts"]  # type: ignore[assignment]
    return charts


def test_rounds_are_counted_from_1_in_whole_numbers() -> None:
    rounds = ["1", "2", "3"]
    heat = HeatMap(
        title="drift", x="round", rows_named=["a"], columns=rounds, values=[[0.1, 0.2, None]], label="xi"
    )
    assert [tick.get_text() for tick in plots.draw(heat).axes[0].get_xticklabels()] == rounds
    series = {"a": ([1.0, 2.0, 3.0], [0.1, 0.2, 0.3])}
    view = View(name="", x="round", y="accuracy", series=series, percent=True)
    axes = plots.draw(Curves(title="accuracy", views=[view])).axes[0]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1, 2, 3]


def test_a_cell_that_was_interrupted_starts_again(tmp_path: Path) -> None:
    cell = Cell.of({"model": "mlp", "num_clients": 1, "rounds": 1, "local_steps": 1})
    half = tmp_path / cell.key
    half.mkdir()
    (half / "config.json").write_text("{}")
    told: list[Event] = []
    run_cells([cell, cell], tmp_path, EngineChoice(jobs=1), told.append)
    assert told[0] == RunsPlanned(finished=0, total=1)
    assert told[1:] == [RunFinished(key=cell.key, done=1, total=1, seconds_left=0)]
    assert len(finished_run(cell, tmp_path).rounds) == 1


def test_a_cell_that_fails_or_diverges_is_an_outcome_and_not_the_end(tmp_path: Path) -> None:
    small = {"model": "mlp", "num_clients": 1, "rounds": 2, "local_steps": 1}
    good, wild = Cell.of(small), Cell.of(small | {"eta_l": 1e30})
    bad = Cell.of({"svr": ["head"], "num_clients": 1})
    cells = [bad, wild, good]
    run_cells(cells, tmp_path, EngineChoice(jobs=1), unheard)
    found = [outcome_of(cell, tmp_path) for cell in cells]
    ends = [outcome for outcome in found if outcome is not None]
    assert [outcome.kind for outcome in ends] == [Kind.FAILED, Kind.DIVERGED, Kind.FINISHED]
    assert marks(ends) == f"failed, diverged (r. {ends[1].round})"
    assert [len(run.rounds) for run in usable(ends)] == [2]
    assert [outcome.shown(lambda run: str(len(run.rounds))) for outcome in ends][2] == "2"
    with pytest.raises(RunError, match=r"ended with code 2: Error: --svr 'head' selects no parameter"):
        finished_run(bad, tmp_path)
    with pytest.raises(RunError, match=r"diverged in round \d+: .*lower --eta-l"):
        finished_run(wild, tmp_path)
    told: list[Event] = []
    run_cells(cells, tmp_path, EngineChoice(jobs=1), told.append)
    assert told[0] == RunsPlanned(finished=2, total=3), "what diverged would diverge again"
    assert [event.key for event in told if isinstance(event, RunFinished)] == [bad.key]


def test_a_cell_that_may_stop_at_a_target_has_the_rounds_up_to_it_however_far_it_went(tmp_path: Path) -> None:
    settings = {"model": "mlp", "num_clients": 1, "rounds": 3, "local_steps": 20}
    run_cells([Cell.of(settings)], tmp_path, EngineChoice(jobs=1), unheard)
    whole = finished_run(Cell.of(settings), tmp_path)
    first, second, last = (record.accuracy or 0 for record in whole.rounds)
    assert first < second <= last, "it learns"
    stopped = outcome_of(Cell.of(settings, stop_at=second), tmp_path)
    assert stopped is not None
    assert (stopped.kind, stopped.round, stopped.mark) == (Kind.STOPPED, 2, "")
    assert usable([stopped])[0].rounds == whole.rounds[:2]
    beyond = outcome_of(Cell.of(settings, stop_at=1.1), tmp_path)
    assert beyond is not None
    assert beyond.kind is Kind.FINISHED


def test_cells_differ_where_their_flags_do() -> None:
    long = {"svr": [f"layer.{k}.weight" for k in range(50)]}
    cells = [Cell.of(s) for s in ({}, {"rounds": 1}, {"rounds": 2}, {"augment": False}, long)]
    assert len({cell.key for cell in cells}) == len(cells)
    assert all(len(cell.key) < 200 and "/" not in cell.key for cell in cells)
    assert cells[3].flags == (("--no-augment", ""),)
    patterns = ("features.[1]*", "features.[!1]*", "features._1_")
    assert len({Cell.of({"svr": [each]}).key for each in patterns}) == 3, "which no name of a folder says"


def test_runs_of_another_precision_are_other_runs(tmp_path: Path) -> None:
    benches = [Bench(EngineChoice(autocast=a), tmp_path, "data", unheard) for a in ("off", "bf16")]
    assert benches[0].runs != benches[1].runs


def test_a_report_on_any_runs(tmp_path: Path) -> None:
    short = {"model": "mlp", "num_clients": 2, "rounds": 2, "local_steps": 2, "width": 0.1}
    cells = [Cell.of({"algorithm": algorithm, **short}) for algorithm in ("fedavg", "fedpvr")]
    run_cells(cells, tmp_path, EngineChoice(jobs=2), unheard)
    runs = [str(tmp_path / cell.key) for cell in cells]
    out = tmp_path / "report.html"
    result = invoke("fedlab", "report", *runs, "--link", "2Mbit", "--out", str(out))
    assert result.exit_code == 0, result.output
    page = out.read_text()
    charts = drawn(page)
    assert [chart["kind"] for chart in charts].count("heat") >= 5, "classes and drift of two, and shards"
    views = [view["name"] for view in charts[0]["views"]]
    assert views[:4] == ["over rounds", "over bytes", "over time on a link of 2Mbit", "loss"]
    bars = next(chart for chart in charts if chart["kind"] == "bars")
    fedavg, scaffold = (bars["parts"][name] for name in bars["faint"])
    assert scaffold["model"] == scaffold["control"] == fedavg["model"]
    for label in set(bars["names"]) - set(bars["faint"]):
        assert bars["parts"][label]["model"] == fedavg["model"], "sent in full precision, once each way"
    drift = [chart for chart in charts if chart.get("label") == "xi"]
    for chart in drift:
        assert all("classifier" in chart["rows_named"][k] for k in chart["marked"])
    assert "Time to an accuracy on a link of 2Mbit" in page
    assert "bytes by client, all rounds" in page
    assert "classifier.weight" in page
    missing = invoke("fedlab", "report", os.devnull)
    assert missing.exit_code == 1
    assert "is not a run directory" in missing.output


@pytest.mark.slow
def test_a_comparison_states_time_to_accuracy_for_every_method_and_codec(tmp_path: Path) -> None:
    flags = ["--num-clients", "2", "--rounds", "2", "--local-epochs", "1", "--target", "0.1", "--json"]
    command = ["compare", *flags, "--codecs", "int8", "--out", str(tmp_path)]
    slow, fast = (invoke("fedlab", *command, "--link", link) for link in ("1Mbit", "2Mbit"))
    assert slow.exit_code == fast.exit_code == 0, slow.output
    rows = {row["method"]: row for row in json.loads(slow.stdout)}
    assert list(rows) == ["fedpvr", "fedpvr derived", "fedavg", "scaffold", "scaffold derived"]
    assert rows["scaffold derived"]["up_bytes"] == rows["fedavg"]["up_bytes"] < rows["scaffold"]["up_bytes"]
    assert rows["scaffold"]["accuracy"] == rows["scaffold derived"]["accuracy"]
    for row, at_twice in zip(rows.values(), json.loads(fast.stdout), strict=True):
        assert row["transfer_seconds"] == pytest.approx(2 * at_twice["transfer_seconds"])
        if row["seconds_to_target"] is not None:
            assert row["seconds_to_target"] > at_twice["seconds_to_target"]
    assert invoke("fedlab", "compare", "--codecs", "int7").exit_code == 2


@pytest.mark.parametrize(("text", "bits"), [("2Mbit", 2e6), ("10 kbit/s", 1e4), ("1.5Gbit", 1.5e9)])
def test_link_speeds(text: str, bits: float) -> None:
    assert bits_per_second("--link", text) == bits


@pytest.mark.parametrize("text", ["fast", "2MB", "0Mbit", ""])
def test_speeds_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--link must be a speed such as 2Mbit"):
        bits_per_second("--link", text)


def test_schedules_start_at_eta_l_and_never_grow() -> None:
    for schedule in ("constant", "cosine", "multistep"):
        sizes = [step_size(schedule, 0.4, r, 20) for r in range(1, 21)]
        assert sizes[0] == 0.4
        assert sizes == sorted(sizes, reverse=True)
        assert min(sizes) > 0
    assert step_size("multistep", 1.0, 11, 20) == pytest.approx(0.1)
    assert step_size("multistep", 1.0, 16, 20) == pytest.approx(0.01)


def test_tables_are_markdown_csv_and_json(tmp_path: Path) -> None:
    Table(["a", "b"], [["x", "1,5"]]).save(tmp_path, "t")
    assert (tmp_path / "t.md").read_text() == "| a | b |\n| --- | ---: |\n| x | 1,5 |\n"
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == 'x,"1,5"'
    assert json.loads((tmp_path / "t.json").read_text()) == [{"a": "x", "b": "1,5"}]


def test_centralised_training_is_one_client_with_everything(tmp_path: Path) -> None:
    flags = ["--model", "mlp", "--rounds", "2", "--run-dir", str(tmp_path / "run")]
    result = invoke("fedlab", "centralised", *flags)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [client["examples"] for client in config["clients"]] == [1437]
    refused = invoke("fedlab", "centralised", "--algorithm", "fedpvr")
    assert refused.exit_code == 2
