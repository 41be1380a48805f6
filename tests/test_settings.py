"""Settings: each is declared, described and checked in one place."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

import fedserver.cli
from common.algorithms import ALGORITHMS
from common.commandline import Option
from common.errors import ConfigError
from common.server_step.robust import Robustness
from common.wire.codec_choice import Codecs
from fedserver.config import RunConfig
from fedserver.settings import Section, about
from fedserver.settings_table import table
from tests.test_architecture import FILES, ROOT, tree
from tests.test_cli import PROGRAMS, invoke

OPTIONS = {
    parameter.name: parameter
    for parameter in fedserver.cli.main.commands["run"].params
    if isinstance(parameter, Option)
}


@cache
def strings() -> Counter[str]:
    """Every text in the code, and how often it is there."""
    return Counter(
        node.value
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@pytest.mark.parametrize("field", fields(RunConfig), ids=lambda field: field.name)
def test_every_setting_has_a_sentence_a_heading_and_a_flag(field: Any) -> None:
    declared = about(field)
    assert len(declared.text) > 15
    assert declared.text.endswith(".")
    assert OPTIONS[field.name].section == declared.section
    assert (OPTIONS[field.name].help or "").startswith(declared.text)
    if field.default in (None, ()):
        assert declared.if_unset, "the help says what happens without it"


@pytest.mark.parametrize("field", fields(RunConfig), ids=lambda field: field.name)
def test_a_setting_is_described_once(field: Any) -> None:
    text = about(field).text
    assert sum(count for string, count in strings().items() if text in string) == 1
    for command in PROGRAMS["fedlab"].commands.values():
        for parameter in command.params:
            if parameter.name == field.name:
                assert isinstance(parameter, Option)
                assert (parameter.help or "").startswith(text), f"fedlab {command.name} describes it again"


def test_the_help_has_its_headings_in_order_and_six_flags_under_the_first() -> None:
    shared = [*Section, "Log", "Options"]
    for program, command in (("fedserver", "run"), ("fedlab", "simulate"), ("fedlab", "centralised")):
        lines = invoke(program, command, "--help").output.splitlines()
        headings = [line.removesuffix(":") for line in lines if line.endswith(":") and line[0] != " "]
        assert headings == shared
        first = lines[lines.index("Start here:") + 1 : lines.index("Run:")]
        assert sum(line.lstrip().startswith("--") for line in first) == 6


def test_the_clients_help_has_headings_too() -> None:
    lines = invoke("fedclient", "run", "--help").output.splitlines()
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert headings == [
        "Start here",
        "Data",
        "State",
        "Training",
        "Permissions",
        "Wire",
        "Security",
        "Log",
        "Options",
    ]


def test_the_document_of_the_settings_is_that_of_the_code() -> None:
    found = (ROOT / "docs" / "settings.md").read_text()
    assert found == table(), "write it again with: make docs"


def test_strings_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    parse, check = Codecs.parse, Robustness.__post_init__
    monkeypatch.setattr(Codecs, "parse", lambda settings: (calls.update(["codecs"]), parse(settings))[1])
    monkeypatch.setattr(
        Robustness, "__post_init__", lambda self: (calls.update(["robustness"]), check(self))[1]
    )
    config = RunConfig(codec=("int8",), aggregation="median")
    for _ in range(3):
        assert config.codecs.up == "int8"
        assert config.robustness.aggregation == "median"
    assert calls == {"codecs": 1, "robustness": 1}
    assert replace(config, codec=("fp16",)).codecs.up == "fp16"


def test_the_algorithm_says_which_settings_go_with_it() -> None:
    assert RunConfig(algorithm="fedprox").prox_weight == ALGORITHMS["fedprox"].prox_default == 0.1
    assert RunConfig(algorithm="feddyn", feddyn_alpha=0.3).prox_weight == 0.3
    assert RunConfig().prox_weight == 0
    for name, algorithm in ALGORITHMS.items():
        if not algorithm.takes_patterns:
            with pytest.raises(ConfigError, match="--svr goes with --algorithm fedpvr"):
                RunConfig(algorithm=name, svr=("x",))
    with pytest.raises(ConfigError, match="--mu does not go with --algorithm feddyn"):
        RunConfig(algorithm="feddyn", mu=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quorum": 0.0}, "--quorum must be above 0 and at most 1, got 0.0"),
        ({"cka": 1}, "--cka must be 0 or at least 4, got 1"),
        ({"lease": 0.0}, "--lease must be positive, got 0.0"),
        ({"validation": 1.0}, "--validation must be from 0 to below 1, got 1.0"),
        ({"min_clients": 5}, "--min-clients must be at most --num-clients, got 5 of 4"),
        ({"gather": 1.0, "min_clients": 2}, "--gather and --min-clients exclude each other"),
        ({"mu": float("inf"), "algorithm": "fedprox"}, "--mu must be positive, got inf"),
        ({"norm_bound": 1.0}, "--norm-bound must be above 1, got 1.0"),
        ({"aggregation": "mode"}, "--aggregation must be mean, median or trimmed:F"),
        ({"aggregation": "median", "weighting": "examples"}, "goes with --weighting uniform only"),
        ({"variates": "derived", "algorithm": "fedavg"}, "needs a control variate to derive"),
        ({"algorithm": "feddyn", "eta_g": 0.5}, "is defined for --eta-g 1 and --weighting uniform only"),
        ({"codec": ("int7",)}, "--codec int7: up can be fp32"),
        ({"schedule": "steps"}, "--schedule must be one of constant, cosine, multistep, got 'steps'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_that_cannot_work_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunConfig(**settings)


def test_full_batches_are_none_in_the_code_and_a_word_outside() -> None:
    assert RunConfig(batch_size=None).as_dict()["batch_size"] == "full"
    assert RunConfig().as_dict()["image_size"] is None
