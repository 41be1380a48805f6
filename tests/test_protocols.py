"""Experiments of our own that come along: every file can run, has five paired seeds, and is documented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedlab.sweep.cli import configured
from fedlab.sweep.file import read_sweep
from fedlab.sweep.protocols import PROTOCOLS
from tests.test_cli import invoke

ROOT = Path(__file__).parent.parent
OWN = sorted(PROTOCOLS.keys() - {"table2-tuning"})


@pytest.mark.parametrize("name", OWN)
def test_every_experiment_compares_with_fedavg_on_five_seeds_as_published(name: str) -> None:
    sweep = read_sweep(PROTOCOLS[name], configured)
    assert sweep.report.all_seeds == (0, 1, 2, 3, 4)
    assert sweep.methods[sweep.baseline].settings["algorithm"] == "fedavg"
    assert sweep.settings["norm_bound"] == "none"
    assert sweep.question.endswith("?")


def test_they_are_listed_and_documented() -> None:
    listed = json.loads(invoke("fedlab", "reproduce", "--list", "--json").output)["experiments"]
    assert [each["name"] for each in listed] == sorted(PROTOCOLS)
    text = (ROOT / "docs" / "how-to" / "reproduce.md").read_text()
    assert [name for name in PROTOCOLS if f"`fedlab reproduce {name}`" not in text] == []


def test_an_experiment_is_planned_by_its_name_and_takes_other_seeds() -> None:
    for seeds, factor in (([], 5), (["--seeds", "2"], 2)):
        planned = invoke("fedlab", "reproduce", "steps", "--dry-run", "--json", *seeds)
        assert len(json.loads(planned.output)) == 3 * 4 * factor


def test_capitals_and_dashes_do_not_matter() -> None:
    assert invoke("fedlab", "reproduce", "Steps", "--dry-run").exit_code == 0
    assert "or one of our experiments" in invoke("fedlab", "reproduce", "stepz", "--dry-run").output


def test_a_fixed_experiment_has_no_scale() -> None:
    refused = invoke("fedlab", "reproduce", "steps", "--scale", "small", "--dry-run")
    assert refused.exit_code == 2
    assert "--scale: this experiment has settings of its own" in refused.output
