"""Packages of users bring algorithms, codecs, metrics, data sets and models; nothing of this tree changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.algorithms import ALGORITHMS
from common.data import datasets
from common.data.names import INSTALLED as DATASETS
from common.errors import ConfigError, RefusedError, WireError
from common.events import unheard
from common.installed.allowed import load_allowed
from common.installed.entry_points import EntryPoints
from common.metrics.choice import INSTALLED as METRICS
from common.metrics.choice import Metrics
from common.models.build import build_model
from common.models.names import INSTALLED as MODELS
from common.models.spec import ModelSpec
from common.wire.codec_choice import CODECS, announced_codec
from fedclient.policy.policy import Policy
from fedclient.site import Site
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from tests.packages import HALFWAY, SIGNS, THINGS, install
from tests.processes import Federation, without_metadata
from tests.test_cli import invoke

ROOT = Path(__file__).parent.parent
SHORT = {"num_clients": 2, "rounds": 2, "local_steps": 3, "alpha": 0.3}
FLAGS = [part for name, value in SHORT.items() for part in ("--" + name.replace("_", "-"), str(value))]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages; what is loaded from it is forgotten."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for table in (ALGORITHMS, CODECS):
        monkeypatch.setattr(table, "_ready", {})
    for points in (ALGORITHMS.installed, CODECS.installed, MODELS, DATASETS, METRICS):
        monkeypatch.setattr(points, "loaded", {})
    modules = set(sys.modules)
    yield folder
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder:
            del sys.modules[name]


def test_an_algorithm_of_a_users_own_package_runs_through_server_clients_and_simulation(
    federation: Federation, packages: Path
) -> None:
    install(packages, "halfway", HALFWAY, {"algorithms halfway": "Halfway"})
    beside = ("tests.beside", str(packages))
    for name in ("halfway", "scaffold"):
        simulate(RunConfig(algorithm=name, **SHORT), federation.folder / name, unheard)  # type: ignore[arg-type]
    federation.server("--algorithm", "halfway", *FLAGS, through=beside)
    for i in range(2):
        federation.client(f"client-{i}", "--allow-plugin", "halfway", through=beside)
    federation.finish()
    simulated, scaffold = (
        without_metadata(federation.folder / name / "model.safetensors") for name in ("halfway", "scaffold")
    )
    assert simulated == federation.bytes("model") != scaffold


def test_a_client_imports_what_is_installed_only_if_its_owner_allows_it(
    federation: Federation, packages: Path
) -> None:
    telling = f"open({str(federation.folder / 'imported')!r}, 'a').write('x')\n"
    install(packages, "halfway", telling + HALFWAY, {"algorithms halfway": "Halfway"})
    beside = ("tests.beside", str(packages))
    federation.server("--algorithm", "halfway", *FLAGS, "--num-clients", "1", through=beside)
    federation.wait_for("server", "waiting")
    before = (federation.folder / "imported").read_text()
    federation.client("client-0", through=beside)
    assert federation.exit_code("client-0") == 1
    assert "the run uses algorithm 'halfway', known here are fedpvr, " in federation.log("client-0")
    assert "--allow-plugin" in federation.log("client-0")
    assert (federation.folder / "imported").read_text() == before


def test_models_and_data_sets_need_the_sites_word_too(packages: Path) -> None:
    install(packages, "things", THINGS, {"models line": "network", "datasets points": "points"})
    for require in (Site().require_model, Site().require_dataset):
        with pytest.raises(RefusedError, match="if a package has it, --allow-plugin line allows it"):
            require("line")
    allowed = Site(plugins=frozenset(Policy(modules=("line",)).modules))
    load_allowed(allowed.plugins)
    allowed.require_model("line")
    assert "things" not in sys.modules, "a permission imports neither models nor data sets"
    with pytest.raises(ConfigError, match="got 'nothing', which no installed package has either"):
        Site(plugins=frozenset({"nothing"}))


def test_model_data_set_and_metric_of_a_package_are_used_by_their_names(
    packages: Path, tmp_path: Path
) -> None:
    points = {"models line": "network", "datasets points": "points", "metrics missed": "missed"}
    install(packages, "things", THINGS, points)
    config = RunConfig(model="line", dataset="points", algorithm="fedavg", **SHORT)  # type: ignore[arg-type]
    simulate(config, tmp_path / "run", unheard)
    last = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] > 0.5
    assert Metrics.load(("missed",), 3).names == ("missed",)
    assert RunConfig(input_shape="4", classes=("a", "b"), dataset="none", metrics=("missed",), best="missed")


def test_a_codec_of_a_package_travels_under_a_private_number(packages: Path, tmp_path: Path) -> None:
    install(packages, "signs", SIGNS, {"codecs signs": "Signs"})
    for name in ("fp32", "signs"):
        simulate(RunConfig(codec=(name,), model="mlp", **SHORT), tmp_path / name, unheard)  # type: ignore[arg-type]
    sent = {
        name: json.loads((tmp_path / name / "rounds.jsonl").read_text().splitlines()[0])["bytes"]["up"][
            "model"
        ]
        for name in ("fp32", "signs")
    }
    assert 28 < sent["fp32"] / sent["signs"] < 32, "a bit instead of 32, and four bytes for each tensor"


@pytest.mark.parametrize(
    ("source", "points", "message"),
    [
        (
            "raise OSError('no')",
            {"algorithms a": "A"},
            r"algorithm a of broken 1.0: loading broken:A failed: OSE",
        ),
        ("A = 3", {"algorithms a": "A"}, "algorithm a of broken 1.0: expected a class derived from"),
        (
            HALFWAY + "    prox_setting = 'nu'\n",
            {"algorithms a": "Halfway"},
            "prox_setting is None or one of mu",
        ),
    ],
)
def test_a_broken_package_is_one_line(
    packages: Path, source: str, points: dict[str, str], message: str
) -> None:
    install(packages, "broken", source, points)
    with pytest.raises(ConfigError, match=message):
        RunConfig(algorithm="a")
    result = invoke("fedserver", "run", "--algorithm", "a")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)


def test_codecs_share_out_their_numbers(packages: Path) -> None:
    install(packages, "signs", SIGNS, {"codecs signs": "Signs"})
    install(packages, "others", SIGNS.replace('"signs"', '"others"'), {"codecs others": "Signs"})
    ours = SIGNS.replace("70", "4").replace('"signs"', '"ours"')
    install(packages, "ours", ours, {"codecs ours": "Signs"})
    RunConfig(codec=("signs",))
    with pytest.raises(
        ConfigError, match=r"codec others of others 1.0: its number 70 is that of codec signs too"
    ):
        RunConfig(codec=("others",))
    with pytest.raises(ConfigError, match="a number from 64 to 127, got 'ours' and 4"):
        RunConfig(codec=("ours",))
    assert announced_codec(70, "float32", 9, 0, 0).num_bytes(9, 4) == 6
    with pytest.raises(
        WireError, match="codec number 71 is of another package, which is not installed or not"
    ):
        announced_codec(71, "float32", 9, 0, 0)


def test_a_name_that_two_packages_claim_is_used_by_neither(packages: Path) -> None:
    for package in ("first", "second"):
        install(packages, package, HALFWAY, {"algorithms halfway": "Halfway"})
    with pytest.raises(
        ConfigError, match=r"algorithm halfway is in first 1.0 and second 1.0; uninstall all but"
    ):
        RunConfig(algorithm="halfway")


def test_what_is_built_in_stays_what_it_is(packages: Path) -> None:
    install(packages, "halfway", HALFWAY, {"algorithms fedavg": "Halfway"})
    assert type(ALGORITHMS["fedavg"]).__name__ == "Algorithm"
    listed = json.loads(invoke("fedlab", "plugins", "--json").output)
    assert [(row["name"], row["state"]) for row in listed] == [("fedavg", "a built-in has this name")]


def test_the_list_of_plug_ins_says_which_can_be_used(packages: Path) -> None:
    install(packages, "halfway", HALFWAY, {"algorithms halfway": "Halfway", "models none": "Nothing"})
    listed = json.loads(invoke("fedlab", "plugins", "--json").output)
    assert {row["name"]: row["state"][:6] for row in listed} == {"halfway": "ok", "none": "model "}
    assert "halfway 1.0" in invoke("fedlab", "plugins").output


def test_what_lies_in_the_current_directory_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "halfway", HALFWAY, {"algorithms halfway": "Halfway"})
    monkeypatch.syspath_prepend(tmp_path)
    assert "halfway" in EntryPoints("fedpvr.algorithms", "algorithm")
    monkeypatch.chdir(tmp_path)
    assert "halfway" not in EntryPoints("fedpvr.algorithms", "algorithm")


def test_a_factory_of_a_package_is_checked_like_any_other(packages: Path) -> None:
    install(packages, "things", THINGS + "three = 3\n", {"models three": "three", "models line": "points"})
    spec = ModelSpec(name="three", num_classes=2, width=1.0, image_shape=(4,), dtype="float32")
    with pytest.raises(ConfigError, match=r"three of things 1.0: expected a function or a class, got 3"):
        build_model(spec, 0)
    with pytest.raises(ConfigError, match="unknown data set 'line'; choose digits"):
        datasets.load("line", "train")


@pytest.mark.slow
def test_a_package_that_pip_installs_runs_in_processes_of_its_users(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "halfway.py").write_text(HALFWAY)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "halfway"\nversion = "1.0"\n'
        '[project.entry-points."fedpvr.algorithms"]\nhalfway = "halfway:Halfway"\n'
        '[tool.hatch.build.targets.wheel]\nonly-include = ["halfway.py"]\n'
    )
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "packages"), str(source)], check=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "packages")}

    def start(program: str, *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", program, *flags]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    run = ["run", "--listen", "127.0.0.1:0", "--run-dir", "run", "--algorithm", "halfway", *FLAGS]
    server = start("fedserver", *run)
    assert server.stdout is not None
    address = next(line.split()[-1] for line in server.stdout if "listening on" in line)
    clients = [
        start("fedclient", "run", "--server", address, "--name", f"c{i}", "--allow-plugin", "halfway")
        for i in range(2)
    ]
    for process in (*clients, server):
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    simulated = start("fedlab", "simulate", "--run-dir", "simulated", "--algorithm", "halfway", *FLAGS)
    output, _ = simulated.communicate(timeout=120)
    assert simulated.returncode == 0, output
    both = [without_metadata(tmp_path / name / "model.safetensors") for name in ("run", "simulated")]
    assert both[0] == both[1]
