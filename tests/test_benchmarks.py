"""The benchmarks run, say where and how they measured, and the documents say what they found."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import run as runner
from common.models.vgg import VGG11
from common.tensors.layout import Layout, Purpose, TensorSpec
from measure import compare, report, still
from measure.federation import shapes_of
from measure.sampled import THREADS, module_of
from published.documents import PLACES, RESULTS, filled, marked, results

ROOT = Path(__file__).parent.parent
IN_A_MOMENT = ("capture", "codec", "fold", "wire")


def _sensible(found: dict[str, Any]) -> None:
    assert found["question"].endswith("?")
    assert found["command"].startswith("python ")
    assert {"processor", "cores", "memory_gb", "versions"} <= found["machine"].keys()
    assert {"before", "after"} == found["load"].keys()
    assert found["tables"]
    numbers = [v for rows in found["tables"].values() for row in rows for v in row.values()]
    assert all(math.isfinite(v) for v in numbers if isinstance(v, float))
    assert all(math.isfinite(ratio["value"]) for ratio in found["ratios"].values())


@pytest.mark.parametrize("name", IN_A_MOMENT)
def test_a_benchmark_writes_what_it_found_and_where(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    script = str(ROOT / "benchmarks" / f"bench_{name}.py")
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--json", str(out)])
    importlib.import_module(f"bench_{name}").main()
    found = json.loads(out.read_text())
    _sensible(found)
    assert found["benchmark"] == f"bench_{name}"
    assert report.text(found) in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(runner.names()) - {*runner.BY_HAND, *IN_A_MOMENT}))
def test_benchmarks_of_real_processes_run_in_their_smallest_form(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/run.py", name, "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    _sensible(json.loads((tmp_path / f"{name}.json").read_text()))
    assert "load" in (tmp_path / runner.TABLE).read_text()


def test_a_name_that_no_benchmark_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "warp"])
    with pytest.raises(SystemExit):
        runner.main()
    assert "there is no benchmark 'warp'; choose from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "words"),
    [({"at_most": 2.0}, "at most 2.00: NO"), ({"at_least": 2.0}, "at least 2.00: yes"), ({}, "3.00")],
)
def test_a_limit_is_shown_beside_its_figure(limit: dict[str, float], words: str) -> None:
    found = report.Report("How many?")
    found.row("counts", what="sheep", number=3.0)
    found.ratio("sheep", 3.0, **limit)
    assert report.text(found.as_json()).splitlines()[-1].endswith(words)


def test_figures_of_two_revisions_are_matched_by_table_row_and_column() -> None:
    rows = [{"what": "copy", "clients": 2, "ms": 1.5}, {"what": "fold", "clients": 2, "ms": None}]
    assert compare.flattened({"tables": {"times": rows}}) == [(("times", "copy 2", "ms"), 1.5)]


@pytest.mark.slow
def test_a_revision_is_measured_beside_this_tree(repository: None, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "measure.compare", "HEAD", "wire", "--turns", "1", "--flags=--quick"]
    git = {name: os.environ[name] for name in ("GIT_DIR", "GIT_WORK_TREE")}
    paths = {"PYTHONPATH": str(ROOT / "benchmarks"), "PATH": "/usr/bin:/bin"} | git
    subprocess.run(command, cwd=ROOT, env=paths, check=True)
    assert "parse and check" in capfd.readouterr().out


def test_a_model_without_training_has_the_shapes_of_the_one_it_stands_for() -> None:
    sizes = {
        model: sum(math.prod(shape) for shape in shapes_of(model).values())
        for model in ("idle", "cnn", "vgg11")
    }
    assert sizes["idle"] == 1000
    assert sizes["vgg11"] == sum(p.numel() for p in VGG11(10).parameters())
    assert 4 * sizes["cnn"] == pytest.approx(0.4e6, rel=0.05)
    assert [n for n, p in still.vgg11(10).named_parameters() if p.requires_grad] == [
        "classifier.weight",
        "classifier.bias",
    ]


def test_processor_time_is_put_down_to_the_innermost_module_of_ours() -> None:
    names: list[str] = []

    def specs() -> Iterator[TensorSpec]:
        names.append(module_of(sys._getframe()))
        yield TensorSpec("w", "float32", (1,), Purpose.MODEL)

    list(specs())
    Layout(specs())
    assert names == [THREADS, "common/tensors/layout"]  # Tests are none of the packages that are measured.


def test_a_document_without_the_place_of_a_table_is_noticed() -> None:
    with pytest.raises(SystemExit, match="has 0 places for the table 'rounds'"):
        filled("no such place", "rounds", "today", [])


@pytest.mark.parametrize("name", PLACES)
def test_tables_of_documents_are_those_of_the_results_that_they_name(name: str) -> None:
    document, table = PLACES[name]
    text = (ROOT / document).read_text()
    found = marked(name).search(text)
    assert found is not None
    folder = RESULTS / found[1]
    assert folder.is_dir(), f"{document} names {folder}, which is not there; say: make bench-docs"
    assert filled(text, name, folder.name, table(results(folder))) == text


def test_results_that_are_kept_say_where_and_how_they_were_measured() -> None:
    kept = [path for path in RESULTS.glob("*/*.json")]
    assert kept
    for path in kept:
        _sensible(json.loads(path.read_text()))
        assert (path.parent / runner.TABLE).exists()
