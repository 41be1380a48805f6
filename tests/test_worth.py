"""Is it worth it for a site? Its own model, the federation's, and that one fine-tuned, on its own data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.data import datasets
from common.data.partition_file import write_partition
from common.events import unheard
from common.records import form
from common.records.client import Baseline, KnownRun
from fedclient.worth.counts import Confusion, Share, wilson
from fedclient.worth.report import Findings, Outgoing, write_page
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from tests.killpoint import trap
from tests.processes import Federation
from tests.test_cli import invoke

EVERY_SECOND = ("--dataset", "digits", "--shard", "0/2")


def known(**changes: object) -> KnownRun:
    """A run with a name in it that no page should take for its own."""
    usual = {
        "format": 2,
        "run_id": "abc",
        "index": 0,
        "num_clients": 3,
        "seed": 0,
        "model": "cnn",
        "num_classes": 2,
        "image_shape": [1, 8, 8],
        "dtype": "float32",
        "width": 1.0,
        "fingerprint": "f",
        "class_names": ["<script>alert(1)</script>", "b"],
        "mean": [0.0],
        "std": [1.0],
        "rounds": 2,
        "local_epochs": 1,
        "local_steps": None,
        "batch_size": 32,
        "eta_l": 0.1,
        "momentum": 0.0,
        "augment": False,
        "validation": 0.0,
        "update_bytes": 1000,
    }
    return form.read(KnownRun, usual | changes)


def test_wilsons_interval_is_the_published_one() -> None:
    """Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29."""
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (hits, examples), ends in published.items():
        assert [round(end, 4) for end in wilson(hits, examples)] == [*ends]
    assert wilson(0, 0) == (0.0, 1.0)
    assert Share(0, 0).text() == "-"


def test_a_page_asks_for_nothing_escapes_names_and_has_every_class_with_its_support(tmp_path: Path) -> None:
    counts = Confusion(((3, 1), (0, 6)))
    departures = (Outgoing("2026-11-17 12:00", 1, 1000),)
    found = Findings("a", known(), "own data", {"alone": counts, "federated": counts}, None, departures)
    write_page(found, tmp_path / "site.html")
    page = (tmp_path / "site.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"https?:|src=|@import|url\(", page)
    assert "prefers-color-scheme: dark" in page
    assert "90.0% (59.6% to 98.2%)" in page
    assert "<td>4</td><td>75.0%" in page
    assert "2026-11-17 12:00" in page
    assert (tmp_path / "site.html").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_site_compares_its_own_model_with_the_federations(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the client has written down in a run."""
    rules = ["--local-epochs", "1", "--momentum", "0.5", "--validation", "0.2", "--seed", "4"]
    federation.server("--num-clients", "2", "--rounds", "2", "--algorithm", "fedavg", *rules)
    federation.client("a", *EVERY_SECOND)
    federation.client("b", "--dataset", "digits", "--shard", "1/2")
    federation.finish()
    monkeypatch.chdir(federation.folder)
    trained = invoke("fedclient", "baseline", "--state-dir", "state/a", *EVERY_SECOND)
    assert trained.exit_code == 0, trained.output
    (folder,) = Path("state/a").glob("run-*")
    record = form.read(Baseline, json.loads((folder / "baseline.json").read_text()))
    assert (record.examples, record.rounds, record.steps) == (719, 2, 2 * (575 // 32))
    flags = ["--name", "a", "--state-dir", "state/a", "--model", "run/model.safetensors", *EVERY_SECOND]
    for test in ((), ("--test", "digits")):
        result = invoke("fedclient", "report", *flags, *test)
        assert result.exit_code == 0, result.output
        kinds = [line.partition(":")[0] for line in result.output.splitlines()]
        assert kinds == ["alone", "federated", "personalised", "report"]
    page = Path("site.html").read_text()
    assert "2 updates that count (rounds 1-2)" in page
    assert "<td>b</td><td>718</td><td>2</td><td>1-2</td>" in page
    missing = invoke("fedclient", "baseline", "--state-dir", "state", *EVERY_SECOND)
    assert missing.output.splitlines() == [
        "Error: state knows nothing of a run; expected the --state-dir of a client that took part"
    ]


@pytest.mark.slow
def test_the_model_of_a_run_that_goes_on_comes_from_its_server(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client itself must not run meanwhile; it goes on afterwards."""
    federation.server("--num-clients", "1", "--rounds", "3", "--local-steps", "2", "--validation", "0.2")
    federation.client("a", *EVERY_SECOND, through=trap("stop", "before training", 2))
    federation.wait_for_stop("a")
    monkeypatch.chdir(federation.folder)
    flags = ["--name", "a", "--state-dir", "state/a", "--server", federation.address, *EVERY_SECOND]
    busy = invoke("fedclient", "report", *flags)
    assert "state/a is in use by another client" in busy.output.splitlines()[-1]
    federation.kill("a")
    result = invoke("fedclient", "report", *flags)
    assert result.exit_code == 0, result.output
    assert "0 others; the model does not say who" in Path("site.html").read_text()
    federation.client("a", *EVERY_SECOND)
    federation.finish()


def test_a_baseline_is_a_federation_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: the same first x, batches and steps; so a report finds both models alike."""
    monkeypatch.chdir(tmp_path)
    digits = datasets.load("digits", "train")
    write_partition(tmp_path / "all.json", [np.arange(len(digits.labels))])
    settings = RunConfig(
        num_clients=1,
        rounds=2,
        algorithm="fedavg",
        seed=4,
        local_steps=3,
        momentum=0.5,
        partition=str(tmp_path / "all.json"),
    )
    simulate(settings, tmp_path / "run", unheard)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    same = {name: config[name] for name in ("class_names", "fingerprint", "eta_l", "batch_size", "seed")}
    norm = {"mean": [*digits.mean], "std": [*digits.std]}
    run = known(**same, **norm, num_classes=10, local_steps=3, local_epochs=None, momentum=0.5)
    folder = tmp_path / "state" / "run-abc"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(form.text(run))
    flags = ["--state-dir", "state", "--dataset", "digits"]
    assert invoke("fedclient", "baseline", *flags).exit_code == 0
    for name, tensor in load_file(folder / "baseline.safetensors").items():
        np.testing.assert_array_equal(tensor, load_file(tmp_path / "run" / "model.safetensors")[name])
    reporting = ["report", *flags, "--name", "client-0", "--model", "run/model.safetensors"]
    untested = invoke("fedclient", *reporting)
    assert untested.output.splitlines()[-1].endswith("give --test FOLDER or a data set")
    result = invoke("fedclient", *reporting, "--test", "digits")
    assert result.exit_code == 0, result.output
    alone, federated, personalised, _ = result.output.splitlines()
    assert alone.removeprefix("alone") == federated.removeprefix("federated")
    assert personalised.startswith("personalised: accuracy ")
    assert "2 updates that count (rounds 1-2)" in Path("site.html").read_text()
