"""What `--scale paper` would run and print, cell by cell against a table typed from the paper."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from common.algorithms import ALGORITHMS
from common.errors import ConfigError
from common.events import unheard
from fedlab.engine.choice import EngineChoice
from fedlab.experiments.bench import Bench
from fedlab.experiments.methods import TRAINED
from fedlab.paper import published
from fedlab.paper.catalogue import ITEMS
from fedlab.paper.columns import COLUMNS, PRINTED
from fedlab.paper.items import central
from fedlab.paper.reproduce import MAKERS
from fedlab.paper.scales import SCALES
from fedlab.paper.study import Study, Wanted
from fedlab.sweep.cli import configured
from fedlab.sweep.file import read_sweep
from fedserver import presets
from fedserver.config import RunConfig
from tests.test_cli import invoke

ROOT = Path(__file__).parent.parent
PAPER: dict[str, Any] = tomllib.loads((Path(__file__).parent / "data" / "paper.toml").read_text())
SETUP = PAPER["setup"]
NAMES: list[str] = PAPER["columns"]
SCHEDULES = {"c": "constant", "m": "multistep", "cos": "cosine"}
STUDY = Study(
    scale=SCALES["paper"], seeds=1, bench=Bench(EngineChoice(jobs=1), Path("nowhere"), "data", unheard)
)


def config_of(wanted: Wanted) -> RunConfig:
    """The settings that the run's own command line comes to, by the code that reads command lines."""
    return configured(wanted.cell)


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_has_the_settings_of_the_paper(name: str, method: str) -> None:
    k, column = NAMES.index(name), COLUMNS[name]
    config = config_of(STUDY.federated(column, method, 0))
    assert (config.dataset, config.model) == (column.dataset, column.model)
    assert name == f"{config.dataset}-{config.model}-a{config.alpha}"
    for setting in ("num_clients", "batch_size", "local_epochs", "eta_g", "validation"):
        assert getattr(config, setting) == SETUP[setting]
    assert config.rounds == SETUP["rounds_of_table_2"]
    assert config.momentum == PAPER["momentum"][method]
    tuned = method if method in PAPER["eta_l"] else "fedavg"
    assert config.eta_l == PAPER["eta_l"][tuned][k]
    assert config.schedule == SCHEDULES[PAPER["schedule"][tuned][k]]
    assert config.eta_l in SETUP["eta_l_grid"]
    if method == "feddyn":
        assert config.feddyn_alpha == SETUP["feddyn_alpha"][column.dataset]
    if method == "fedprox":
        assert config.mu in SETUP["mu_grid"]
    assert config.clients_per_round is None
    assert config.weighting == "uniform"
    assert (config.aggregation, config.norm_bound) == ("mean", None), "the plain mean, whatever comes"
    assert config.codec == ()
    assert STUDY.scale.stand_in(column).target == SETUP["target"][column.dataset]


def test_table_3_and_prediction_sets_look_at_x_after_round_80() -> None:
    assert STUDY.scale.at_round == SETUP["round_of_table_3"]
    for name in NAMES:
        for method in TRAINED:
            (last,) = STUDY.until(COLUMNS[name], method)
            assert config_of(last).rounds == SETUP["round_of_table_3"]
            (scored,) = STUDY.scored(COLUMNS[name], method)
            settings = config_of(scored)
            assert settings.rounds == (100 if settings.schedule == "constant" else 80)
            assert settings.eval_every == 1


def test_the_centralised_grid_is_the_papers_once_for_each_data_set_and_model() -> None:
    grid = PAPER["centralised"]
    wanted = central.runs(STUDY, [COLUMNS[name] for name in NAMES])
    configs = [config_of(each) for each in wanted]
    assert len(configs) == 4 * len(grid["eta_l"]) * len(grid["momentum"])
    assert {(c.dataset, c.model) for c in configs} == {(COLUMNS[n].dataset, COLUMNS[n].model) for n in NAMES}
    for config in configs:
        assert (config.algorithm, config.num_clients) == ("fedavg", 1)
        assert config.rounds * (config.local_epochs or 0) == grid["epochs"]
        assert config.eta_l in grid["eta_l"]
        assert config.momentum in grid["momentum"]
        assert config.schedule == "constant"
        assert config.batch_size == SETUP["batch_size"]
        assert config.validation == SETUP["validation"]


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers_are_those_of_the_paper(name: str) -> None:
    k = NAMES.index(name)
    for method, values in PAPER["table2"].items():
        key = (name, method)
        found = f"{published.ROUNDS[key]}({published.SPEED_UP[key].replace(' ', '')})"
        assert found == values[k]
    for method, values in PAPER["table3"].items():
        assert float(published.TOP_1[name, method]) == values[k]
    for method, copies in PAPER["copies"].items():
        assert published.COPIES[name, method] == copies[COLUMNS[name].model]
    for cells in (published.ROUNDS, published.SPEED_UP, published.TOP_1, published.COPIES):
        assert {column for column, _ in cells} == set(NAMES)


def test_published_speed_ups_are_the_quotients_of_published_rounds() -> None:
    """A slip of the finger in one of the two would show."""
    for (name, method), text in published.SPEED_UP.items():
        base, rounds = (float(re.sub(r"\+", "", published.ROUNDS[name, each])) for each in ("fedavg", method))
        if text != "-" and "+" not in published.ROUNDS[name, method]:
            assert float(text.strip("> x")) == pytest.approx(base / rounds, abs=0.11)


def test_the_setup_is_written_down_where_tuning_and_repeats_take_it_from() -> None:
    assert list(published.ETA_L) == SETUP["eta_l_grid"]
    assert list(published.MU) == SETUP["mu_grid"]
    assert SETUP["repeats"] == published.SEEDS
    assert SETUP["target"] == published.TARGETS


def test_presets_cover_every_column_and_make_valid_settings() -> None:
    assert set(PRINTED) == set(NAMES)
    for name in presets.NAMES:
        for algorithm in ALGORITHMS:
            settings = dict[str, Any](presets.settings(name, algorithm))
            assert RunConfig(algorithm=algorithm, **settings).num_clients == 10
    for name in NAMES:
        if "resnet8" in name:
            other = name.replace("resnet8", "resnet8-bn")
            for algorithm in ALGORITHMS.built_in:
                ours, theirs = (presets.settings(each, algorithm) for each in (name, other))
                assert {k for k in ours if ours[k] != theirs[k]} == {"model"}
    with pytest.raises(ConfigError, match=r"unknown preset 'x'; choose cifar10-vgg11-a0.1"):
        presets.settings("x", "fedavg")


def test_presets_fit_a_terminal_of_80_columns() -> None:
    told = invoke("fedlab", "presets").stdout
    assert "mentum" in told
    assert "\N{HORIZONTAL ELLIPSIS}" not in told


@pytest.mark.parametrize("item", ITEMS)
def test_every_command_line_of_every_item_is_a_valid_run(item: str) -> None:
    """Which it was not for figure 2, whose clients that are alike have no preset."""
    for wanted in MAKERS[item].runs(STUDY, [COLUMNS[name] for name in ITEMS[item].columns]):
        config = config_of(wanted)
        for name, value in wanted.settings.items():
            found = getattr(config, name)
            assert list(value) == list(found) if isinstance(value, list) else value == found


def test_the_tuning_for_table_2_is_a_sweep_over_the_papers_grid() -> None:
    sweep = read_sweep(ROOT / "fedlab" / "experiments" / "protocols" / "table2-tuning.toml", configured)
    assert set(sweep.grid["preset"]) == set(NAMES)
    assert set(sweep.methods) == set(TRAINED)
    assert list(sweep.search.values["eta_l"]) == SETUP["eta_l_grid"]
    assert set(sweep.search.values["schedule"]) == set(SCHEDULES.values())
    assert list(sweep.searched("fedprox")["mu"]) == SETUP["mu_grid"]
    assert len(sweep.report.all_seeds) == SETUP["repeats"]
    assert set(sweep.report.targets) == set(SETUP["target"].values())
    assert sweep.settings["rounds"] == SETUP["rounds_of_table_2"]
