"""The catalogue of the paper's tables and figures: every item, at a scale that takes seconds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import datasets
from common.errors import ConfigError, DataError
from common.events import unheard
from common.page.charts import Curves, View
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Kind, Outcome, finished_run
from fedlab.experiments.bench import Bench
from fedlab.experiments.methods import DERIVED, METHODS, TRAINED
from fedlab.paper import catalogue
from fedlab.paper.catalogue import ITEMS
from fedlab.paper.columns import COLUMNS, PRINTED
from fedlab.paper.data import DATA
from fedlab.paper.items import central, svr_start
from fedlab.paper.items.parts import accuracy_at, copies
from fedlab.paper.items.tables import speed_up
from fedlab.paper.plan import plan, planned, rates
from fedlab.paper.reproduce import MAKERS, Made, reproduce
from fedlab.paper.scales import SCALES, Central, Scale, StandIn
from fedlab.paper.site import write_index
from fedlab.paper.study import Study, Wanted
from fedlab.reports import plots
from tests.processes import forked_children
from tests.test_cli import invoke
from tests.test_page import documents, parsed

_MODEL = {"width": 0.3}
SHORT = Scale(
    name="short",
    text="Two rounds of two clients.",
    rounds=2,
    at_round=2,
    central=Central(rounds=2, local_epochs=1, eta_l=(0.1,), momentum=(0.0, 0.9), validation=0.1),
    settings={"num_clients": 2, "local_steps": 4, "batch_size": 32, "eta_l": 0.2},
    stand_ins={
        (dataset, model): StandIn(dataset="digits", model="mlp", target=0.99, options=_MODEL, examples=200)
        for dataset in ("cifar10", "cifar100")
        for model in ("vgg11", "resnet8", "resnet8-bn")
    },
    cka=16,
)
"""One model and one data set stand for all, so that most columns share their runs."""
HERE = "the first 200 of digits, mlp of width 0.3, a=0.5 (for CIFAR-10 VGG-11)"
"""The heading of the column that most tests take."""
FAST = ("table2", "table3", "fig1", "fig3", "figC1")
SLOW = tuple(name for name in ITEMS if name not in FAST)


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """Runs that start at once."""
    with forked_children():
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Where items take seconds."""
    bench = Bench(EngineChoice(jobs=2), tmp_path_factory.mktemp("bench"), "data", unheard)
    return Study(scale=SHORT, seeds=1, bench=bench)


@pytest.fixture(scope="module")
def made(study: Study) -> dict[str, Made]:
    """Items that need few runs, made for one column."""
    chosen = ["cifar10-vgg11-a0.5"]
    return {each.item.name: each for each in reproduce([ITEMS[name] for name in FAST], study, chosen)}


def drawn(report: Path) -> list[dict[str, Any]]:
    """The pictures of a page."""
    charts: list[dict[str, Any]] = documents(parsed(report.read_text()))["charts"]  # type: ignore[assignment]
    return charts


def rows_of(made: Made, name: str) -> list[dict[str, str]]:
    """A table of an item."""
    rows: list[dict[str, str]] = json.loads((made.report.parent / f"{name}.json").read_text())
    return rows


@pytest.mark.parametrize("name", FAST)
def test_an_item_has_tables_pictures_and_a_page_that_says_what_it_shows(
    made: dict[str, Made], name: str
) -> None:
    item = made[name]
    page = item.report.read_text()
    assert item.tables
    assert item.item.title in page
    assert SHORT.text in page
    assert "fedlab reproduce" in page
    assert list(item.report.parent.glob("*.csv"))
    if name.startswith(("fig", "table2", "table3")):
        assert drawn(item.report)
        assert list(item.report.parent.glob("*.svg"))


def test_table_2_has_bounds_where_nobody_reaches_the_target_and_the_papers_numbers(
    made: dict[str, Made],
) -> None:
    rows = rows_of(made["table2"], "table2")
    assert [row["algorithm"] for row in rows] == list(METHODS)
    shown = {row["algorithm"]: row[f"{HERE} to 99%"] for row in rows}
    assert shown.pop("fedavg") == ">2 (1.00x)"
    assert set(shown.values()) == {">2 (-)"}
    assert "15 (1.0x)" in made["table2"].report.read_text()
    assert drawn(made["table2"].report)[0]["title"] == HERE, "a picture says what it is without its page"
    settings = rows_of(made["table2"], "settings")
    assert {row["algorithm"] for row in settings} == set(TRAINED)
    assert {row["momentum"] for row in settings} == {"0.0"}


def test_table_3_measures_copies_for_its_columns_and_runs_no_derived_method_in_full(
    made: dict[str, Made], study: Study
) -> None:
    rows = {row["algorithm"]: row[HERE] for row in rows_of(made["table3"], "copies")}
    assert rows["fedavg"] == rows["fedprox"] == rows["feddyn"] == "2.0000x"
    assert rows["scaffold"] == "4.0000x"
    assert 2 < float(rows["fedpvr"].removesuffix("x")) < 2.5
    assert rows["fedpvr derived"] == rows["scaffold derived"] == "2.0000x"
    top = {row["algorithm"]: row[HERE] for row in rows_of(made["table3"], "table3")}
    for derived, base in DERIVED.items():
        assert top[derived] == top[base]
    for path in study.bench.runs.glob("*derived*/config.json"):
        assert json.loads(path.read_text())["local_steps"] == 1


def test_a_derived_method_is_the_other_to_the_bit(study: Study) -> None:
    """That is why its accuracies are copied."""
    column = COLUMNS["cifar10-vgg11-a0.5"]
    pairs = [(study.federated(column, m, 0), study.federated(column, DERIVED[m], 0)) for m in DERIVED]
    study.run([each for pair in pairs for each in pair])
    for pair in pairs:
        derived, sent = (study.bench.runs / each.cell.key / "model.safetensors" for each in pair)
        tensors = [_tensors(path) for path in (derived, sent)]
        assert tensors[0] == tensors[1]


def _tensors(path: Path) -> dict[str, bytes]:
    from safetensors.numpy import load_file

    return {name: tensor.tobytes() for name, tensor in load_file(path).items()}


def test_few_rounds_of_one_step_tell_what_all_rounds_send(study: Study) -> None:
    column = COLUMNS["cifar10-vgg11-a0.5"]
    for method in DERIVED:
        short, whole = study.traffic_of(column, method), study.federated(column, method, 0, rounds=5)
        assert short == study.traffic_of(column.at(0.1), method)
        study.run([short, whole])
        found = [finished_run(each.cell, study.bench.runs) for each in (short, whole)]
        assert copies(found[0]) == copies(found[1])


def test_finished_runs_are_kept_and_shared(made: dict[str, Made], study: Study) -> None:
    before = {path: path.stat().st_mtime_ns for path in study.bench.runs.glob("*/conformal.json")}
    reproduce([ITEMS["table2"], ITEMS["fig1"]], study, ["cifar10-vgg11-a0.5"])
    after = {path: path.stat().st_mtime_ns for path in study.bench.runs.glob("*/conformal.json")}
    assert {path: after[path] for path in before} == before
    assert before.keys() == after.keys()


def test_conformal_figures_have_the_centralised_model(made: dict[str, Made]) -> None:
    assert "centralised top-1" in drawn(made["fig3"].report)[0]["names"]
    (row,) = (row for row in rows_of(made["fig3"], "sets-cifar10-vgg11-a0.5") if row["algorithm"] == "fedavg")
    assert "kappa 0.5" in row, "down to where coverage falls below the accuracies of the paper"


def test_the_centralised_grid_is_chosen_by_validation_and_alpha_plays_no_part(study: Study) -> None:
    first, second = (COLUMNS[name] for name in ("cifar10-vgg11-a0.1", "cifar10-vgg11-a0.5"))
    assert central.runs(study, [first]) == central.runs(study, [first, second])
    wanted = central.runs(study, [first])
    study.run(wanted)
    by_validation = {
        each.cell: finished_run(each.cell, study.bench.runs).rounds[-1].validation_accuracy for each in wanted
    }
    best = central.chosen(study, first)
    chosen = study.centralised(first, best.eta_l, best.momentum, 0)
    assert by_validation[chosen.cell] == max(value or 0 for value in by_validation.values())


def test_the_index_leads_to_every_item_that_was_made(made: dict[str, Made], study: Study) -> None:
    index = write_index(study, list(made.values()))
    page = index.read_text()
    for name in made:
        assert f'href="{name}/report.html"' in page
        assert (index.parent / name / "report.html").exists()
    assert "figC2/report.html" not in page


def test_variance_reduction_starts_at_layers_never_inside_one(study: Study) -> None:
    for name in ("cifar100-vgg11-a1.0", "cifar100-resnet8-a1.0"):
        starts = svr_start.starts(replace(study, scale=SCALES["paper"]), COLUMNS[name])
        assert starts[0].tensor == 0
        assert starts[-1].names == ()
        assert starts[-1].label == "none (FedAvg with momentum 0.9 and FedPVR's eta_l)"
        (own,) = (start for start in starts if start.own)
        assert own.tensor == (16 if "vgg11" in name else 27), "as in the paper"
        for start in starts:
            layers = {parameter.rpartition(".")[0] for parameter in start.names}
            outside = {p.rpartition(".")[0] for p in starts[0].names if p not in start.names}
            assert not layers & outside


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_every_other_item_can_be_made_for_its_own_columns(study: Study, name: str) -> None:
    (item,) = reproduce([ITEMS[name]], study, [])
    assert item.tables
    assert name.startswith("table") or drawn(item.report)
    if name == "figC4":
        assert all("centralised" in chart["names"] for chart in drawn(item.report))
    if name == "fig2b":
        matrices = [chart for chart in drawn(item.report) if chart["kind"] == "heat"]
        assert matrices
        for chart in matrices:
            assert chart["rows_named"] == chart["columns"], "client by client"
            assert all(chart["values"][k][k] == pytest.approx(1) for k in range(2))


@pytest.mark.slow
def test_columns_with_batch_norm_and_several_seeds(study: Study) -> None:
    several = replace(study, seeds=2)
    (item,) = reproduce([ITEMS["table2"]], several, ["cifar10-resnet8-bn-a0.1"])
    (view,) = drawn(item.report)[0]["views"]
    assert set(view["bands"]) == set(TRAINED)
    for name, (low, high) in view["bands"].items():
        ys = view["series"][name][1]
        assert all(a <= y <= b for a, y, b in zip(low, ys, high, strict=True))


def test_a_run_that_diverged_or_failed_is_an_entry_and_a_bound(study: Study) -> None:
    column = COLUMNS["cifar10-vgg11-a0.5"]
    study.run(study.every_seed(column, "fedavg"))
    good = study.outcome(study.federated(column, "fedavg", 0))
    assert good.run is not None
    diverged = Outcome(kind=Kind.DIVERGED, round=1, run=None)
    failed = Outcome(kind=Kind.FAILED)
    low = min(record.accuracy or 1 for record in good.run.rounds)
    bound = speed_up([diverged], [good], low, 2)
    assert bound is not None
    assert bound.sign == "<"
    above = speed_up([good], [diverged], low, 2)
    assert above is not None
    assert above.sign == ">"
    assert speed_up([failed], [good], low, 2) is None
    assert speed_up([diverged, good], [good, diverged], low, 2) is None


def test_the_first_rounds_of_a_longer_run_are_those_of_a_shorter_one(study: Study) -> None:
    """So table 3 may read round 80 of 100, where the step size is constant."""
    column = COLUMNS["cifar10-vgg11-a0.5"]
    pair = [study.federated(column, "fedpvr", 0, rounds=rounds) for rounds in (2, 5)]
    study.run(pair)
    short, whole = (finished_run(each.cell, study.bench.runs) for each in pair)
    assert [accuracy_at(whole, r) for r in (1, 2)] == [accuracy_at(short, r) for r in (1, 2)]
    paper = replace(study, scale=SCALES["paper"])
    multistep = COLUMNS["cifar10-vgg11-a0.1"]
    assert [each.settings["rounds"] for each in paper.scored(multistep, "scaffold")] == [80]
    assert [each.settings["rounds"] for each in paper.scored(multistep, "fedavg")] == [100]


def test_names_are_the_papers_in_any_spelling_and_old_ones_say_what_they_are_now() -> None:
    assert set(MAKERS) == set(ITEMS)
    assert catalogue.items("figC.1") == catalogue.items("fig-c1") == [ITEMS["figC1"]]
    assert catalogue.items("all") == list(ITEMS.values())
    for old, new in (("table1", "table2"), ("fig-drift", "fig2c"), ("fig-svr-start", "fig5")):
        with pytest.raises(ConfigError, match=new):
            catalogue.items(old)
    for command in (["table1"], ["table4"], [], ["fig4", "--column", "mnist-vgg11-a0.1"]):
        result = invoke("fedlab", "reproduce", *command)
        assert result.exit_code == 2
        assert result.output.count("\n") == 1, result.output
    for item in ITEMS.values():
        assert set(item.columns) <= set(PRINTED)


def test_the_list_names_every_item_with_columns_and_scales() -> None:
    listed = json.loads(invoke("fedlab", "reproduce", "--list", "--json").stdout)
    assert [item["name"] for item in listed["items"]] == list(ITEMS)
    for scale in listed["scales"].values():
        assert set(scale["columns"]) == set(COLUMNS)
    shown = invoke("fedlab", "reproduce", "--list").stdout
    for name in ITEMS:
        assert name in shown


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_has_something_for_every_column_and_its_sizes_are_known(scale: str, study: Study) -> None:
    at = replace(study, scale=SCALES[scale])
    for column in COLUMNS.values():
        for method in TRAINED:
            assert planned(at.federated(column, method, 0)).trained > 0
        models = {at.scale.stand_in(c).model for c in COLUMNS.values() if c.dataset == column.dataset}
        assert len(models) == 3, "columns of different models are different"


def test_a_plan_counts_what_a_run_does(study: Study) -> None:
    wanted = study.federated(COLUMNS["cifar10-vgg11-a0.5"], "fedavg", 0)
    found = planned(wanted)
    assert found.trained == 2 * 2 * 4 * 32, "two rounds of two clients with four steps of 32"
    assert found.evaluated == 2 * 360
    paper = replace(study, scale=SCALES["paper"])
    whole = planned(paper.federated(COLUMNS["cifar10-vgg11-a0.1"], "fedavg", 0))
    assert whole.trained == 100 * 10 * 190 * 256
    assert DATA["digits"].train == len(datasets.load("digits", "train").labels)
    assert DATA["digits"].test == len(datasets.load("digits", "test").labels)


def test_everything_can_be_planned_at_the_papers_scale(study: Study) -> None:
    paper = replace(study, scale=SCALES["paper"])
    found = {item.name: item for item in plan(list(ITEMS.values()), paper, [])}
    assert len(found["table2"].runs) == 8 * 5
    assert len(found["fig2c"].runs) == 3, "also for clients that are alike, which no preset has"
    assert {run.settings["alpha"] for run in found["fig2c"].runs} == {0.1, 0.5, 100.0}
    assert found["fig4"].new == 0, "shared with table 2"
    assert not found["figC1"].runs


def test_a_dry_run_prints_runs_times_and_a_total_and_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(SCALES, "tiny", SHORT)
    command = ["reproduce", "fig4", "--dry-run", "--device-rate", "1000", "--out", str(tmp_path / "out")]
    document = json.loads(invoke("fedlab", *command, "--json").stdout)
    (item,) = document["items"]
    assert item["runs"] == document["total"]["runs"] == 3
    images = item["images_trained"] + item["images_evaluated"]
    assert item["hours_on_device"] == pytest.approx(images / 1000 / 3600)
    assert document["images_per_second_here"]["mlp"] > 0
    told = invoke("fedlab", *command, "--seeds", "2").stdout
    assert "total" in told
    assert [told.count(f"seed {seed}\n") for seed in (0, 1)] == [3, 3]
    assert not (tmp_path / "out").exists()
    wrong = invoke("fedlab", "reproduce", "fig4", "--dry-run", "--device-rate", "vgg=3")
    assert wrong.exit_code == 2
    assert "MODEL=IMAGES_PER_SECOND" in wrong.output
    assert invoke("fedlab", "reproduce", "fig4", "--json").exit_code == 2


def test_rates_are_for_all_models_or_for_each() -> None:
    assert rates(["100", "vgg11=10"], ["vgg11", "resnet8"]) == {"vgg11": 10, "resnet8": 100}
    with pytest.raises(ConfigError, match="says nothing of resnet8"):
        rates(["vgg11=10"], ["vgg11", "resnet8"])


def test_the_command_ends_with_its_tables_and_where_the_pages_are(
    made: dict[str, Made], study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCALES, "tiny", SHORT)
    command = ["reproduce", "figC1", "--column", "cifar10-vgg11-a0.5", "--out", str(study.bench.folder)]
    result = invoke("fedlab", *command)
    assert result.exit_code == 0, result.output
    assert "figC1: Who has what, seed 0\n| in the paper | here |" in result.output
    assert result.output.endswith(f"all pages: {study.bench.folder / 'index.html'}\n")


def test_bands_and_points_are_drawn() -> None:
    series: dict[str, tuple[Sequence[float], Sequence[float | None]]] = {"a": ([1.0, 2.0], [0.1, 0.3])}
    view = View(
        name="", x="round", y="accuracy", series=series, bands={"a": ([0.0, 0.2], [0.2, 0.5])}, percent=True
    )
    axes = plots.draw(Curves(title="t", views=[view])).axes[0]
    (band,) = axes.collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert math.isclose(min(heights), 0)
    assert math.isclose(max(heights), 50)
    points = plots.draw(Curves(title="t", views=[replace(view, bands={}, points=True)])).axes[0]
    assert points.lines[0].get_linestyle() == "None"


@pytest.mark.slow
def test_a_real_item_of_the_tiny_scale(tmp_path: Path) -> None:
    result = invoke("fedlab", "reproduce", "figC3", "--scale", "tiny", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    (view,) = drawn(tmp_path / "figC3" / "report.html")[-1]["views"]
    for xs, ys in view["series"].values():
        assert xs == list(range(1, SCALES["tiny"].rounds + 1))
        assert max(ys) > 0.2, "it learns"


def test_the_page_on_reproducing_has_a_command_for_every_item() -> None:
    page = (Path(__file__).parent.parent / "docs" / "how-to" / "reproduce.md").read_text()
    for name in ITEMS:
        assert f"`fedlab reproduce {name}`" in page


def wanted_keys(wanted: Sequence[Wanted]) -> set[str]:
    """Folders of runs."""
    return {each.cell.key for each in wanted}


def test_figures_share_the_runs_of_the_tables(study: Study) -> None:
    tiny = replace(study, scale=SCALES["tiny"])
    columns = [COLUMNS[name] for name in PRINTED]
    table = wanted_keys(MAKERS["table3"].runs(tiny, columns))
    for name in ("table2", "fig1", "fig3", "fig4", "figC3", "figC4"):
        assert wanted_keys(MAKERS[name].runs(tiny, [COLUMNS[c] for c in ITEMS[name].columns])) <= table


def test_the_papers_step_sizes_stand_beside_those_of_a_scale(tmp_path: Path) -> None:
    result = invoke("fedlab", "reproduce", "tableC1", "--scale", "tiny", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "tableC1" / "report.html").read_text()
    paper = page[page.index("In the paper") :]
    assert re.search(r"cifar10-vgg11-a0.5</td>\s*<td[^>]*>scaffold</td>\s*<td[^>]*>0.1</td>", paper)
    assert "multistep" in paper


def test_shards_of_data_that_cannot_be_had_are_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *_: object) -> None:
        raise DataError(f"{name} cannot be had")

    monkeypatch.setattr(datasets, "load", missing)
    result = invoke("fedlab", "reproduce", "figC1", "--scale", "tiny", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "no data" in result.output
    assert "cannot be had" in (tmp_path / "figC1" / "report.html").read_text()
