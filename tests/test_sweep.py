"""A grid of one's own: what its file may say, the search, paired tables, bounds, and starting again."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.events import Event, unheard
from fedlab.engine.choice import EngineChoice
from fedlab.events import RunFinished, RunsPlanned
from fedlab.experiments.bench import Bench
from fedlab.reports.runs import read_run
from fedlab.reports.tables import Table
from fedlab.sweep.cli import configured
from fedlab.sweep.file import read_sweep, with_seeds
from fedlab.sweep.page import document, write_page
from fedlab.sweep.plan import Plan
from fedlab.sweep.run import run_sweep
from fedlab.sweep.tables import Results
from tests.processes import forked_children
from tests.test_cli import invoke
from tests.test_docs import ROOT
from tests.test_experiments import drawn

SMALL = """
title = "Small"
question = "Does it work?"

[settings]
model = "mlp"
num-clients = 2
rounds = 3
local-steps = 40
validation = 0.2

[methods.fedavg]
algorithm = "fedavg"

[methods.fedavg.search]
eta_l = [0.001, 0.2]

[methods.fedpvr]
algorithm = "fedpvr"
eta_l = 0.2

[methods.wild]
algorithm = "fedavg"
eta_l = 1e30

[search]
rounds = 2

[report]
seeds = 2
score = 2
targets = [0.2, 1.0]
"""


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """Runs that start at once."""
    with forked_children():
        yield


def place(folder: Path, jobs: int = 2, told: list[Event] | None = None) -> Bench:
    """Where a sweep of these tests runs."""
    emit = unheard if told is None else told.append
    return Bench(EngineChoice(jobs=jobs), folder, "data", emit)


def written(folder: Path, text: str) -> Path:
    """A file with a sweep."""
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The small sweep, done."""
    folder = tmp_path_factory.mktemp("sweep")
    sweep = read_sweep(written(folder, SMALL), configured)
    return run_sweep(sweep, place(folder), configured)


def entries(table: Table) -> dict[str, str]:
    """The entries of a table with one column, by method."""
    return {method: text for method, text in table.rows}


def folder_of(results: Results) -> Path:
    """Where they are from."""
    run = results.entries["fedavg", ""].outcomes[0].run
    assert run is not None
    return run.path.parent.parent


def test_a_search_takes_what_is_best_on_the_validation_shares(results: Results) -> None:
    assert [each.method for each in results.tried] == ["fedavg", "fedavg"], "the others search nothing"
    best = max(results.tried, key=lambda each: each.accuracy or 0)
    assert [each for each in results.tried if each.chosen] == [best]
    assert results.entries["fedavg", ""].chosen == best.values
    run = results.entries["fedavg", ""].outcomes[1].run
    assert run is not None
    assert run.config.others["eta_l"] == best.values["eta_l"]
    assert results.entries["fedpvr", ""].chosen == {}


def test_methods_are_compared_seed_by_seed_and_one_that_diverges_is_an_entry(results: Results) -> None:
    fedavg, fedpvr, wild = results.entries.values()
    tables = {name: table for name, (_, table) in results.tables().items()}
    expected = statistics.fmean(fedpvr.scores(2)[seed] - fedavg.scores(2)[seed] for seed in (0, 1))
    shown = entries(tables["difference"])
    assert shown["fedavg"] == "-"
    assert shown["fedpvr"].startswith(f"{100 * expected:+.1f} [")
    assert shown["wild"] == "2 x diverged (r. 1)"
    assert wild.scores(2) == {}
    rounds = entries(tables["rounds-to-100"])
    assert rounds["fedpvr"] == ">3 / >3, mean >3.0"
    speed = entries(tables["speed-up-to-20"])
    assert speed["fedavg"] == "1.00x"
    assert speed["wild"].startswith("<"), "it would have needed more than it was given"
    assert entries(tables["speed-up-to-100"])["fedpvr"] == "-"


def test_a_page_has_tables_curves_with_bands_and_what_has_no_value(results: Results, tmp_path: Path) -> None:
    report = write_page(results, tmp_path, "fedlab sweep small.toml")
    page = report.read_text()
    for word in ("Does it work?", "Runs without a value", "found by the search", "lower --eta-l"):
        assert word in page
    (chart,) = drawn(page)
    (view,) = chart["views"]
    assert list(view["series"]) == list(view["bands"]) == ["fedavg", "fedpvr"]
    low, high = view["bands"]["fedpvr"]
    assert all(a <= y <= b for a, y, b in zip(low, view["series"]["fedpvr"][1], high, strict=True))
    for name in ("accuracy.md", "difference.csv", "rounds-to-20.json", "search.md", "curves-0.svg"):
        assert (tmp_path / name).stat().st_size > 50


def test_started_again_nothing_runs_and_another_seed_costs_that_seed(results: Results) -> None:
    told: list[Event] = []
    where = place(folder_of(results), told=told)
    again = run_sweep(results.sweep, where, configured)
    assert document(again, Path()) == document(results, Path())
    assert told == [RunsPlanned(finished=2, total=2), RunsPlanned(finished=6, total=6)]
    told.clear()
    run_sweep(with_seeds(results.sweep, 3), where, configured)
    assert sum(isinstance(event, RunFinished) for event in told) == 3


def test_as_json_everything_is_a_number_or_says_why_not(results: Results) -> None:
    found: Any = json.loads(json.dumps(document(results, Path("report.html"))))
    entries = {entry["method"]: entry for entry in found["entries"]}
    assert found["baseline"] == "fedavg"
    assert entries["fedpvr"]["targets"][1]["rounds"]["0"] == {"rounds": 3, "censored": True}
    assert entries["fedpvr"]["difference"]["low"] <= entries["fedpvr"]["difference"]["mean"]
    assert entries["wild"]["mean"] is None
    assert entries["wild"]["outcomes"]["0"].startswith("diverged in round 1: ")


def test_all_runs_start_from_the_model_of_a_run_on_pooled_data(tmp_path: Path) -> None:
    text = SMALL.partition("[methods.fedavg.search]")[0] + "[prepare]\nrounds = 1\n[report]\nseeds = 1\n"
    text = text.replace("rounds = 3", "rounds = 3\nprobe = 100")
    sweep = read_sweep(written(tmp_path, text), configured)
    found = run_sweep(sweep, place(tmp_path), configured)
    run = found.entries["fedavg", ""].outcomes[0].run
    assert run is not None
    (init,) = (tmp_path / "runs").glob("init-*.safetensors")
    assert run.config.init_sha256.startswith(init.stem.removeprefix("init-"))
    others = {read_run(path.parent).config.num_clients for path in tmp_path.glob("runs/*/config.json")}
    assert others == {1, 2}
    assert str(tmp_path) not in run.path.name, "a folder may be moved"
    gaps = [100 * record.head_gap for record in run.rounds if record.head_gap is not None]
    assert found.tables()["head-gap"][1].rows == [["fedavg", f"{gaps[0]:.1f} to {gaps[-1]:.1f}"]]


def test_a_plan_is_shown_without_a_run(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL + "\n[grid]\nalpha = [0.1, 1.0]\n")
    result = invoke("fedlab", "sweep", str(path), "--dry-run", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[-1] == "16 runs; nothing was run"
    assert len([line for line in lines if line.startswith("search: fedavg")]) == 4
    assert "--rounds 2" in lines[0]
    assert "(chosen by the search: eta_l)" in next(
        line for line in lines if line.startswith("report: fedavg")
    )
    assert not (tmp_path / "out").exists()
    as_json = invoke("fedlab", "sweep", str(path), "--dry-run", "--json", "--seeds", "1")
    assert len(json.loads(as_json.stdout)) == 10


def test_another_order_in_the_file_is_no_other_run(tmp_path: Path) -> None:
    sweep = read_sweep(written(tmp_path, SMALL), configured)
    turned = replace(sweep, settings=dict(reversed(sweep.settings.items())))
    cells = [[run.cell for run in Plan(sweep=each, data_dir="d").report()] for each in (sweep, turned)]
    assert cells[0] == cells[1]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("rounds = 3", "rouns = 3", r"\[settings\]: unknown setting 'rouns'; did you mean rounds\?"),
        ("rounds = 3", "rounds = 0", r"\[methods.fedavg\].*: --rounds must be at least 1, got 0"),
        ("rounds = 3", 'rounds = "three"', r"\[methods.fedavg\].*'three' is not a valid int"),
        ("rounds = 3", "seed = 3", r"\[settings\]: seed cannot stand here: the seeds .* are in \[report\]"),
        (
            "validation = 0.2",
            "",
            r"\[search\]: it chooses by validation accuracy; give validation in \[settings\]",
        ),
        (
            "rounds = 2",
            "rounds = 1",
            r"\[search\]: rounds must be at least 2: validation accuracy is that of",
        ),
        ("[report]", "[report]\nbaselin = 1", r"\[report\]: unknown key 'baselin'; did you mean baseline\?"),
        (
            "[report]",
            '[report]\nbaseline = "x"',
            r"\[report\]: unknown method as baseline 'x'; known are fedavg",
        ),
        ("seeds = 2\n", 'seeds = "two"\n', r"report.seeds: expected whole number .*, got \"two\""),
        ("seeds = 2\n", "seeds = [1, 1]\n", r"\[report\]: seeds: expected a number or different ones"),
        ("[0.2, 1.0]", "[20]", r"\[report\]: targets are accuracies above 0 and at most 1, got 20.0"),
        ("targets = [0.2, 1.0]", "stop_at_target = true", r"\[report\]: stop_at_target needs targets"),
        ("[0.001, 0.2]", "[]", r"\[methods.fedavg.search\]: eta_l: expected different values, got \[\]"),
        ("[0.001, 0.2]", "[0.1, -1.0]", r"\[methods.fedavg\], eta_l -1.0: --eta-l must be positive"),
        ("[search]", "[grid]\neta_l = [1]\n[search]", r"eta_l is in \[grid\] too; keep one of them"),
        ('title = "Small"', "", r"title: expected text, got nothing"),
        (
            "[methods.fedpvr]",
            '[methods.fedpvr]\nsvr = ["features.0"]',
            r"--svr 'features.0' selects no parameter",
        ),
        ("rounds = 3", 'rounds = 3\nmomentum-on = ["head"]', r"--momentum-on 'head' selects no tensor of "),
        ('title = "Small"', "title", r"is no TOML: "),
    ],
)
def test_what_is_wrong_with_a_file_is_said_by_table_and_key(
    before: str, after: str, says: str, tmp_path: Path
) -> None:
    assert before in SMALL
    with pytest.raises(ConfigError, match=f"sweep.toml.*{says}"):
        read_sweep(written(tmp_path, SMALL.replace(before, after, 1)), configured)


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    refused = invoke("fedlab", "sweep", str(tmp_path / "none.toml"))
    assert refused.exit_code == 2
    assert refused.output == f"Error: {tmp_path / 'none.toml'} cannot be read: No such file or directory\n"


@pytest.mark.slow
def test_the_example_of_the_documents_runs_and_one_job_gives_the_same_as_two(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "sweep.md").read_text()
    (text,) = re.findall(r"```toml\n(# heads.toml\n.*?)```", page, re.DOTALL)
    path = written(tmp_path, text)
    found = []
    for jobs in ("1", "2"):
        command = [
            "sweep",
            str(path),
            "--jobs",
            jobs,
            "--json",
            "--seeds",
            "2",
            "--out",
            str(tmp_path / jobs),
        ]
        result = invoke("fedlab", *command)
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout) | {"report": ""})
    assert found[0] == found[1]
    assert len(found[0]["entries"]) == 4
