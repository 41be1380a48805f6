"""The rules of a round: what a header carries, what of it is refused, and that there is one place for it."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from common.errors import FedError, WireError, WrongRunError
from common.events import Event
from common.server_step.rules import Rules
from fedlab.simulation import simulate
from fedpvr.v1 import federation_pb2 as pb
from fedserver.config import RunConfig
from fedserver.events.run import MomentumIgnored
from fedserver.run.run import rules_of
from tests.rules import SIMPLEST, rules

ROOT = Path(__file__).parent.parent
OF_ONE_CLIENT = {"counted_round", "tensors", "resumed_at"}
"""Fields of a header that are no rules."""
UNUSUAL = Rules(
    round=3,
    rounds=9,
    local_steps=7,
    batch_size=11,
    eta_l=0.3,
    momentum=0.9,
    momentum_on=("features", "*.bias"),
    weight_decay=0.01,
    weight_decay_on="all",
    clip_norm=10.0,
    clip_on="all",
    augment=True,
    validation=0.25,
    algorithm="fedprox",
    prox_weight=0.125,
    update_codec="topk:0.01",
    control_codec="int8",
    derived=True,
    num_clients=12,
    eta_g=0.5,
    weighting="examples",
    total_examples=1234.0,
    example_limit=99.0,
    on_probation=(3, 5),
    warm_variates=True,
    gradient_only=True,
    record_drift=True,
    evaluate=True,
    evaluation_only=True,
    aggregation="trimmed:0.2",
    norm_bound=4.0,
    svr_budget=0.25,
    canary=True,
)


@pytest.mark.parametrize(
    "each",
    [SIMPLEST, UNUSUAL, rules(local_epochs=5), rules(batch_size=64, aggregation="median", eta_g=2.0)],
    ids=["simplest", "unusual", "epochs", "median"],
)
def test_rules_go_through_a_header_and_back(each: Rules) -> None:
    assert Rules.from_header(pb.RoundHeader.FromString(each.to_header().SerializeToString())) == each


def test_every_field_of_a_header_is_a_rule_or_of_one_client() -> None:
    """A field that `to_header` forgets would be missing here, and a rule that it forgets above."""
    written = {field.name for field, _ in UNUSUAL.to_header().ListFields()}
    written |= {field.name for field, _ in rules(local_epochs=2).to_header().ListFields()}
    assert written | OF_ONE_CLIENT == {field.name for field in pb.RoundHeader.DESCRIPTOR.fields}
    changed = [f.name for f in fields(Rules) if getattr(UNUSUAL, f.name) != getattr(SIMPLEST, f.name)]
    assert set(changed) == {field.name for field in fields(Rules)}


def test_the_documents_name_every_field_of_a_header() -> None:
    text = (ROOT / "docs" / "wire.md").read_text()
    assert [field.name for field in pb.RoundHeader.DESCRIPTOR.fields if f"`{field.name}`" not in text] == []


def test_rules_are_read_from_headers_and_steps_are_summed_in_one_place() -> None:
    packages = ("common", "fedserver", "fedclient", "fedwire", "fedlab")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    files = [path for path in files if not path.is_relative_to(ROOT / "fedlab/theory")]  # It has no headers.
    names = {field.name for field in pb.RoundHeader.DESCRIPTOR.fields} - OF_ONE_CLIENT - {"round"}
    for pattern in (rf"\bheader\.({'|'.join(names)})\b", r"steps \* \S*eta_l"):
        found = [path for path in files if re.search(pattern, path.read_text())]
        assert found == [ROOT / "common/server_step/rules.py"]


def test_what_is_usual_takes_no_bytes() -> None:
    """A header of uniform weights is the one that earlier releases know."""
    names = {field.name for field, _ in rules(total_examples=60.0).to_header().ListFields()}
    assert names == {
        "round",
        "rounds",
        "local_epochs",
        "eta_l",
        "algorithm",
        "num_clients",
        "eta_g",
        "weighting",
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"algorithm": "fedmagic"},
            WrongRunError,
            "the run uses algorithm 'fedmagic', known here are fedpvr, ",
        ),
        ({"update_codec": "zip"}, WrongRunError, "the run uses codec 'zip', known here are fp32, "),
        ({"control_codec": "topk:2"}, WrongRunError, "the run uses codec 'topk:2'"),
        ({"eta_l": math.nan}, WireError, "eta_l must be positive and finite, got nan"),
        ({"eta_l": 0.0}, WireError, "eta_l must be positive and finite"),
        ({"eta_g": math.inf}, WireError, "eta_g must be finite"),
        ({"weight_decay": -1.0}, WireError, "weight_decay must be finite and not negative"),
        ({"clip_norm": math.inf}, WireError, "clip_norm must be finite and not negative"),
        ({"clip_on": "some"}, WireError, "clip_on is one of outside-svr, all, got 'some'"),
        ({"momentum": 1.0}, WireError, "momentum must be from 0 to below 1"),
        ({"validation": math.nan}, WireError, "validation must be from 0 to below 1"),
        ({"prox_weight": -1.0}, WireError, "prox_weight must be finite and not negative"),
        ({"norm_bound": math.nan}, WireError, "norm_bound must be finite"),
        ({"total_examples": math.inf}, WireError, "total_examples must be finite"),
        ({"round": 0}, WireError, "a round has a number"),
        ({"local_epochs": 0}, WireError, "epochs or steps, of at least 1"),
    ],
    ids=str,
)
def test_a_header_that_makes_no_sense_is_refused(
    change: dict[str, Any], error: type[FedError], message: str
) -> None:
    header = SIMPLEST.to_header()
    for name, value in change.items():
        setattr(header, name, value)
    with pytest.raises(error, match=re.escape(message)):
        Rules.from_header(header)


def test_a_client_need_not_know_how_the_server_puts_updates_together() -> None:
    header = SIMPLEST.to_header()
    header.aggregation, header.weighting = "best", "loudness"
    assert Rules.from_header(header).step_sum(3) == pytest.approx(0.3)


def test_settings_become_rules() -> None:
    config = RunConfig(
        algorithm="fedprox",
        schedule="cosine",
        rounds=4,
        num_clients=6,
        codec=("int8", "control=fp16"),
        weighting="examples",
        norm_bound=3.0,
        batch_size=None,
    )
    found = rules_of(config, 3, augment=True, total_examples=600)
    assert (found.round, found.rounds, found.local_epochs, found.local_steps) == (3, 4, 1, None)
    assert found.eta_l == pytest.approx(0.05)
    assert (found.batch_size, found.augment, found.prox_weight) == (None, True, 0.1)
    assert (found.update_codec, found.control_codec, found.derived) == ("int8", "fp16", False)
    assert (found.client_weight(7), found.weight(7, 0.3), found.total_weight) == (7.0, 7.0, 600.0)
    assert found.robustness.norm_bound == 3.0
    uniform = rules_of(RunConfig(num_clients=6, local_steps=5), 1, augment=False, total_examples=600)
    assert (uniform.local_epochs, uniform.local_steps) == (None, 5)
    assert (uniform.client_weight(7), uniform.total_weight) == (1.0, 6.0)


PARAMETERS = ("features.0.weight", "features.0.bias", "head.weight")


@pytest.mark.parametrize(
    ("on", "svr", "chosen"),
    [
        ((), (), PARAMETERS),
        ((), ("head.weight",), PARAMETERS[:2]),
        ((), PARAMETERS, ()),
        (("outside-svr",), PARAMETERS, ()),
        (("all",), PARAMETERS, PARAMETERS),
        (("features",), (), PARAMETERS[:2]),
        (("features",), PARAMETERS, PARAMETERS[:2]),
        (("*.bias", "head"), PARAMETERS, PARAMETERS[1:]),
        (("outside-svr", "head"), ("head.weight",), PARAMETERS),
        (("none",), (), ()),
    ],
    ids=str,
)
def test_momentum_is_on_the_chosen_parameters(
    on: tuple[str, ...], svr: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    assert rules(momentum=0.9, momentum_on=on).with_momentum(PARAMETERS, svr) == [*chosen]
    assert rules(momentum=0.0, momentum_on=on).with_momentum(PARAMETERS, svr) == []


@pytest.mark.parametrize(
    ("change", "wire"),
    [
        ({"momentum": 0.9}, "fedpvr"),
        ({"momentum": 0.9, "momentum_on": ("outside-svr",)}, "fedpvr"),
        ({"momentum_on": ("features",)}, "fedpvr"),
        ({"momentum": 0.9, "momentum_on": ("features",)}, "fedpvr+momentum-on"),
        ({"weight_decay": 0.1, "clip_norm": 2.0}, "fedpvr+weight-decay+clip-norm"),
    ],
    ids=str,
)
def test_an_older_client_does_not_know_the_algorithm_of_a_run_that_it_would_train_wrongly(
    change: dict[str, Any], wire: str
) -> None:
    header = rules(**change).to_header()
    assert header.algorithm == wire
    assert Rules.from_header(header).algorithm == "fedpvr"
    header.algorithm += "+telepathy"
    with pytest.raises(WrongRunError, match="the run uses feature 'telepathy', known here are momentum-on"):
        Rules.from_header(header)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "scaffold", "momentum": 0.9}, ["--momentum 0.9 has no effect: momentum is for "]),
        (
            {"algorithm": "scaffold", "momentum": 0.9, "momentum_on": ("none",)},
            ["--momentum 0.9 has no effect: "],
        ),
        ({"algorithm": "scaffold", "momentum": 0.9, "momentum_on": ("features",)}, []),
        ({"algorithm": "fedavg", "momentum": 0.9, "momentum_on": ("features",)}, []),
        ({"algorithm": "scaffold"}, []),
        ({"algorithm": "fedpvr", "momentum": 0.9}, []),
    ],
    ids=str,
)
def test_a_run_says_that_it_ignores_momentum(
    tmp_path: Path, settings: dict[str, Any], said: list[str]
) -> None:
    events: list[Event] = []
    config = RunConfig(num_clients=1, rounds=1, local_steps=1, **settings)
    simulate(config, tmp_path / "run", events.append)
    found = [event.text() for event in events if isinstance(event, MomentumIgnored)]
    assert [text[: len(start)] for text, start in zip(found, said, strict=True)] == said
