"""Evaluation where the data are: sites count, the server adds up."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file
from torch.nn import functional as F

from common.data import datasets
from common.data.held_out import stratified
from common.errors import ConfigError, DataError, RefusedError, RunError, WireError
from common.events import unheard
from common.metrics.message import from_message, to_message
from common.records.sites import SiteCounts
from fedclient.evaluation.evaluator import Evaluator
from fedclient.evaluation.transform import transformed
from fedclient.own_data import OwnDataset
from fedclient.site import Site
from fedlab.reports.report import write_report
from fedlab.simulation import simulate
from fedpvr.v1 import federation_pb2 as pb
from fedserver.config import RunConfig
from fedserver.console.status_client import ask
from fedserver.console.tables import show_status
from fedserver.rpc.update import require_announced
from fedserver.run.round import Update
from fedwire.replay.replay import Replay
from fedwire.source import Capture
from fedwire.stats import compare_with_run, statistics
from tests.killpoint import trap
from tests.processes import Federation, lasting_address

SHADES = {"black": 10, "dark": 70, "light": 150, "white": 220}
TWO = ["--input-shape", "3x8x8", "--classes", "black", "--classes", "white", "--local-steps", "2"]
RUN = [*TWO, "--num-clients", "2", "--rounds", "3", "--validation", "0.3", "--eta-l", "0.01"]


def pictures(folder: Path, *classes: str, each: int = 10) -> None:
    """A site's own pictures of some shades."""
    random = np.random.default_rng(sum(map(ord, folder.name)))
    for name in classes:
        (folder / name).mkdir(parents=True)
        for k in range(each):
            pixels = SHADES[name] + random.integers(-9, 10, (8, 8, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{k}.png")


def sites(federation: Federation) -> list[dict[str, Any] | None]:
    """What rounds.jsonl says of evaluations, round by round."""
    return [record.get("sites") for record in federation.rounds()]


def best(federation: Federation) -> dict[str, Any]:
    """What best.safetensors says of itself."""
    with safe_open(federation.folder / "run" / "best.safetensors", "numpy") as file:
        found: dict[str, Any] = json.loads(file.metadata()["best"])
        return found


def two_sites(federation: Federation) -> None:
    """One with all classes and a share that it holds out, one with a class less and a test set of its own."""
    pictures(federation.folder / "a", "black", "white")
    pictures(federation.folder / "b", "white")
    pictures(federation.folder / "test", "black", "white", each=4)


def start_sites(federation: Federation, *others: str) -> None:
    federation.client("a", "--data", "a", *others)
    federation.client("b", "--data", "b", "--test", "test")


def test_sites_evaluate_every_x_and_records_and_status_show_it(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    two_sites(federation)
    federation.server(*RUN, "--best", "loss", "--capture", "run.fedwire")
    federation.client("b", "--data", "b", "--test", "test")
    federation.client("a", "--data", "a", through=trap("stop", "before the last evaluation"))
    federation.wait_for_stop("a")
    status = ask(federation.address)
    assert status["round"] == 3
    assert status["sites"]["round"] == 2
    assert status["sites"]["pooled"].keys() >= {"examples", "accuracy", "f1", "auroc", "loss"}
    assert status["sites"]["clients"]["b"]["examples"] == 8
    show_status(status)
    assert f"{status['sites']['worst']} (worst)" in capsys.readouterr().out
    federation.go_on("a")
    federation.finish()
    found = [each for each in sites(federation) if each]
    assert [sorted(each["sites"]) for each in found] == [["a", "b"]] * 3
    assert {each["examples"] for each in found} == {6 + 8}
    assert {each["sites"]["a"]["counts"]["examples"] for each in found} == {6}
    assert [each["classes"]["black"]["support"] for each in found] == [3 + 4] * 3
    losses = [each["metrics"]["loss"] for each in found]
    assert [record["loss"] for record in federation.rounds()] == losses
    assert best(federation)["round"] == losses.index(min(losses)) + 1
    assert f"worst {found[-1]['worst']}" in federation.log("server")
    assert "data at the clients" in federation.log("server")
    assert "; took part in 3 rounds" in federation.log("a")
    with Capture(federation.folder / "run.fedwire", print) as capture:
        assert not compare_with_run(statistics(capture), federation.folder / "run")
        verdicts = Replay(capture, federation.folder / "run").run()
    assert [verdict.round for verdict in verdicts if verdict.same] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("before the evaluation is written", 1),
        ("before the evaluation is written", 3),
        ("after the best is kept", 1),
        ("after the best is kept", 3),
        ("before broadcast", 3),
        ("before broadcast", 4),
    ],
)
def test_a_server_killed_around_an_evaluation_ends_with_the_same_records(
    federation: Federation, tmp_path: Path, point: str, count: int
) -> None:
    flags = [*RUN, "--best", "accuracy"]
    two_sites(federation)
    undisturbed = Federation(tmp_path / "undisturbed")
    for name in ("a", "b", "test"):
        shutil.copytree(federation.folder / name, undisturbed.folder / name)
    try:
        undisturbed.server(*flags)
        start_sites(undisturbed)
        undisturbed.finish()
    finally:
        undisturbed.close()
    address = lasting_address()
    federation.server(*flags, listen=address, through=trap("kill", point, count))
    start_sites(federation)
    federation.wait_for_death("server")
    federation.server(*flags, listen=address)
    federation.finish()
    assert sites(federation) == sites(undisturbed)
    assert federation.bytes("model") == undisturbed.bytes("model")
    assert best(federation) | {"run": ""} == best(undisturbed) | {"run": ""}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "count"), [("before the last evaluation", 1), ("after the update is kept", 2)]
)
def test_a_client_that_is_killed_comes_back_with_its_counts_and_a_report_shows_them(
    federation: Federation, point: str, count: int
) -> None:
    two_sites(federation)
    federation.server(*RUN)
    federation.client("a", "--data", "a", through=trap("kill", point, count))
    federation.client("b", "--data", "b", "--test", "test")
    federation.wait_for_death("a")
    federation.client("a", "--data", "a")
    federation.finish()
    found = [each for each in sites(federation) if each]
    assert [sorted(each["sites"]) for each in found] == [["a", "b"]] * 3
    assert not found[-1]["absent"]
    page = federation.folder / "report.html"
    write_report([federation.folder / "run"], page, "10Mbit")
    assert "(worst)" in page.read_text()
    assert "95 % interval" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [["--variates", "derived"], ["--codec", "down=fp16", "--algorithm", "scaffold"]]
)
def test_the_last_x_is_evaluated_also_by_those_who_were_not_drawn(
    federation: Federation, flags: list[str]
) -> None:
    two_sites(federation)
    federation.server(*RUN, *flags, "--clients-per-round", "1", "--eval-every", "2")
    start_sites(federation)
    federation.finish()
    found = sites(federation)
    assert [each and len(each["sites"]) for each in found] == [None, 1, 2]


@pytest.mark.slow
def test_the_end_of_a_run_does_not_wait_for_a_client_that_is_gone(federation: Federation) -> None:
    two_sites(federation)
    federation.server(*RUN, "--lease", "1", "--quorum", "0.5")
    federation.client("a", "--data", "a", through=trap("kill", "before the last evaluation"))
    federation.client("b", "--data", "b", "--test", "test")
    federation.wait_for_death("a")
    federation.finish()
    last = sites(federation)[-1]
    assert last is not None
    assert [*last["sites"]] == ["b"]
    assert last["absent"] == {"a": "no sign of life"}


AUDIT = """
import sys, os
log = open(os.environ["OPENED"], "a", buffering=1)
sys.addaudithook(lambda event, found: event == "open" and log.write(f"{found[0]}\\n"))
"""
"""Writes down what a Python process and its children open, from their first line on."""


def start_audited(folder: Path, name: str, *command: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Starts a process of its own; NAME.opened is what it opens, NAME.log what it says."""
    (folder / "audit").mkdir(exist_ok=True)
    (folder / "audit" / "sitecustomize.py").write_text(AUDIT)
    found = {"PYTHONPATH": str(folder / "audit"), "OPENED": str(folder / f"{name}.opened")}
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(command, cwd=cwd, env=os.environ | found, stdout=log, stderr=log)


@pytest.mark.slow
def test_four_sites_train_and_evaluate_and_the_server_opens_no_data(tmp_path: Path) -> None:
    """Every site has other classes; what the server's processes open is written down by an audit hook."""
    chosen = {"north": ["black", "dark"], "east": ["dark", "light"], "south": ["white"], "west": [*SHADES]}
    for name, classes in chosen.items():
        pictures(tmp_path / name, *classes, each=12)
    home, address = tmp_path / "home", lasting_address()
    home.mkdir()
    lines = ['model = "cnn"', 'input_shape = "3x8x8"', f"classes = {json.dumps([*SHADES])}"]
    (home / "task.toml").write_text("\n".join([*lines, 'metrics = ["f1", "accuracy", "auroc"]']))
    strace = ["strace", "-f", "-o", "strace.log", "-e", "trace=open,openat,openat2"]
    traced = strace if shutil.which("strace") else []
    run = ["--task", "task.toml", "--num-clients", "4", "--rounds", "4", "--local-steps", "4"]
    run += ["--listen", address, "--run-dir", "run", "--validation", "0.25", "--best", "f1"]
    server = [*traced, sys.executable, "-m", "fedserver", "run", *run]
    processes = [start_audited(tmp_path, "server", *server, cwd=home)]
    for name in chosen:
        client = ["run", "--server", address, "--name", name, "--data", name, "--state-dir", f"state/{name}"]
        python = (sys.executable, "-m", "fedclient")
        processes.append(start_audited(tmp_path, name, *python, *client, cwd=tmp_path))
    assert [process.wait(120) for process in processes] == [0] * 5, (tmp_path / "server.log").read_text()
    last = json.loads((home / "run" / "rounds.jsonl").read_text().splitlines()[-1])["sites"]
    assert sorted(last["sites"]) == sorted(chosen)
    assert [each["support"] for each in last["classes"].values()] == [6, 9, 6, 6]
    assert last["metrics"].keys() == {"f1", "accuracy", "auroc"}
    assert last["worst"] in chosen
    assert (home / "run" / "best.safetensors").exists()
    logs = [tmp_path / "server.opened", *home.glob("strace.log")]
    for log in map(Path.read_text, logs):
        assert "fedserver/worker" in log, "the worker is seen too"
        assert not re.findall(r"\S*(?:\.png|digits\.npz|/(?:north|east|south|west)/)\S*", log)
    assert "0.png" in (tmp_path / "west.opened").read_text(), "a picture that is opened is seen"


def test_what_is_held_out_has_as_much_of_each_class_and_is_always_the_same() -> None:
    labels = np.repeat([0, 2, 5], [50, 30, 5])
    train, held = stratified(labels, 17, np.random.default_rng(3))
    assert np.bincount(labels[held]).tolist() == [10, 0, 6, 0, 0, 1]
    assert sorted([*train, *held]) == [*range(85)]
    again = stratified(labels, 17, np.random.default_rng(3))[1]
    assert held.tolist() == again.tolist()
    assert not len(stratified(labels, 0, np.random.default_rng(3))[1])
    assert [len(stratified(labels, n, np.random.default_rng(0))[1]) for n in range(85)] == [*range(85)]


GOOD = SiteCounts(examples=5, loss_sum=2.5, confusion=((0, 0, 2), (1, 0, 1), (1, 1, 2)), pairs=(9,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": 6}, "the counts add up to 5, and there are 6 examples"),
        ({"examples": 0}, "examples must be from 1"),
        ({"cells": [0, 2]}, "2 cells need as many counts"),
        ({"cells": [0, 2, 4]}, "cells must ascend, below 2 x 2"),
        ({"cells": [2, 0, 3]}, "cells must ascend"),
        ({"counts": [5, 0, 0]}, "the counts add up to 5"),
        ({"pairs": [9, 9]}, "pairs must be 1 numbers, or none, got 2"),
        ({"pairs": [13]}, "class 1 has 6 pairs with others, got 6.5 that are won"),
        ({"loss_sum": 1e300}, "loss_sum must be at most"),
    ],
)
def test_counts_that_do_not_add_up_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    sent = to_message(GOOD, 2)
    assert from_message(sent, 2) == GOOD
    for name, value in changes.items():
        sent.ClearField(name)  # type: ignore[arg-type]
        sent.MergeFrom(pb.SiteCounts(**{name: value}))
    with pytest.raises(WireError, match=message) as error:
        from_message(sent, 2)
    assert "\n" not in str(error.value)


def test_an_evaluation_on_other_examples_than_announced_is_refused() -> None:
    update = Update("a", 2, steps=1, examples=20, loss=0.0, evaluation=GOOD)
    require_announced(update, 5)
    with pytest.raises(WireError, match="client 'a' evaluates on 6 examples, got 5"):
        require_announced(update, 6)


TASK: dict[str, Any] = {"dataset": "none", "input_shape": "3x8x8", "classes": ("a", "b")}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"best": "f1"}, "--best f1: no such metric here; choose accuracy, balanced_accuracy, loss"),
        ({**TASK, "best": "speed"}, "--best speed: no such metric here; choose accuracy, .*f1"),
        ({**TASK, "metrics": ("accuracy",), "best": "f1"}, "--best f1: no such metric here; choose accuracy"),
        ({**TASK, "metrics": ("speed",)}, "--metrics speed: no such metric here"),
        ({**TASK, "metrics": ("a:b:c",)}, "expected module:factory, got 'a:b:c'"),
        ({**TASK, "loss": "cross entropy"}, "expected module:factory, got 'cross entropy'"),
        ({"transform": "own:scaled"}, "--transform describes a task; give --input-shape too"),
        ({**TASK, "classes": tuple(map(str, range(301))), "best": "accuracy"}, "for at most 300 classes"),
    ],
)
def test_a_metric_that_a_run_cannot_have_is_an_error_at_the_start(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**settings)


@pytest.mark.parametrize("metric", ["loss", "balanced_accuracy"])
def test_a_server_with_a_test_set_keeps_the_best_model_by_it(tmp_path: Path, metric: str) -> None:
    config = RunConfig(num_clients=2, rounds=4, local_steps=2, eta_l=0.5, best=metric, batch_size=8)
    simulate(config, tmp_path / "run", lambda line: None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    values = [
        -line["loss"] if metric == "loss" else sum(line["class_accuracy"]) / len(line["class_accuracy"])
        for line in lines
    ]
    with safe_open(tmp_path / "run" / "best.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["best"])["round"] == values.index(max(values)) + 1
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert kept.keys() == load_file(tmp_path / "run" / "model.safetensors").keys()
    assert all("sites" not in line for line in lines)


OWN = """
from torch.nn import functional as F
def softer(scores, labels): return F.cross_entropy(scores / 2, labels)
def by_example(scores, labels): return F.cross_entropy(scores, labels, reduction="none")
def inverted(examples): return 255 - examples
def shorter(examples): return examples[1:]
"""


def test_a_loss_and_a_transform_come_from_the_clients_own_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_task.py").write_text(OWN)
    found, labels = torch.tensor([[4.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    loss = Evaluator(None, "own_task:softer").loss(found, labels)
    assert loss == F.cross_entropy(found / 2, labels)
    with pytest.raises(RunError, match=r"loss own_task:by_example: expected .* a scalar tensor, got Tensor"):
        Evaluator(None, "own_task:by_example").loss(found, labels)
    digits = datasets.load("digits", "test").subset(np.arange(3))
    assert (transformed(digits, "own_task:inverted").images == 255 - digits.images).all()
    with pytest.raises(DataError, match=r"transform own_task:shorter: expected .*, got uint8 \(2, 1, 8, 8\)"):
        transformed(digits, "own_task:shorter")
    with pytest.raises(ConfigError, match="no module 'absent' in the current directory"):
        transformed(digits, "absent:function")
    with pytest.raises(RefusedError, match="--allow-plugin own_task:softer"):
        Site().require_code("loss", "own_task:softer")


@pytest.mark.slow
def test_a_task_with_a_loss_a_transform_and_a_metric_of_ones_own_runs(federation: Federation) -> None:
    two_sites(federation)
    metric = "def hits(confusion): return confusion.trace() / confusion.sum()\n"
    (federation.folder / "own_task.py").write_text(OWN + metric)
    plugins = ["--loss", "own_task:softer", "--transform", "own_task:inverted"]
    federation.server(*RUN, *plugins, "--metrics", "own_task:hits", "--best", "own_task:hits")
    start_sites(federation)
    federation.finish()
    assert [record["accuracy"] for record in federation.rounds()] == [
        each["metrics"]["own_task:hits"] for each in sites(federation) if each
    ]


def test_a_site_evaluates_on_its_data_set_and_names_its_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_data.py").write_text(
        "import numpy as np\n"
        "def named(split): return np.zeros((4, 2), np.float32), [0, 1, 1, 0], ['white', 'black']\n"
        "def short(split): return np.zeros((4, 2), np.float32), [0, 1, 1, 0], ['white']\n"
    )
    own = OwnDataset("own_data:named", "data", None, unheard, split="test")
    assert own.load(("black", "grey", "white"), (2,)).labels.tolist() == [2, 0, 0, 2]
    with pytest.raises(DataError, match="the run has black, grey; all of its own are white"):
        own.load(("black", "grey"), (2,))
    with pytest.raises(DataError, match="every class needs a name of its own, got 1 for labels to 1"):
        OwnDataset("own_data:short", "data", None, unheard)
