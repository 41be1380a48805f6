"""What a client takes on for a server, and what it tells of itself when it does not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import FedError, RefusedError
from common.models.spec import ModelSpec
from common.tensors.layout import Layout, Purpose, TensorSpec
from fedclient.rpc.reasons import MOST, told
from fedclient.rpc.seat import Seat
from fedclient.run.demands import MAX_EXAMPLE_VALUES, Demands
from fedclient.site import Site
from tests.rules import rules

SPEC = ModelSpec(name="resnet8", num_classes=10, image_shape=(3, 32, 32))
SEAT = Seat("a1", 0, 1, 0, SPEC, "f", tuple("0123456789"), (0.5,) * 3, (0.25,) * 3, "cifar10", [])


def demands(site: Site | None = None, **changes: Any) -> Demands:
    """Of a run with another model."""
    return Demands(replace(SEAT, model=replace(SPEC, **changes)), site or Site(), own_data=False)


def test_the_published_settings_are_taken_by_default() -> None:
    for name in ("vgg11", "resnet8", "resnet8-bn"):
        found = demands(name=name)
        found.require_data(50_000)
        found.require_round(rules(validation=0.1), steps=16_000, batch=256)


def test_pictures_of_the_usual_size_are_taken_by_default() -> None:
    found = demands(image_shape=(3, 224, 224))
    found.require_data(10_000)
    found.require_round(rules(), steps=1_000, batch=32)


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 0.0},
        {"width": -1.0},
        {"width": float("inf")},
        {"num_classes": 0},
        {"num_classes": 100_001},
        {"image_shape": (3, 0, 32)},
        {"image_shape": (3, MAX_EXAMPLE_VALUES, 1)},
        {"dtype": "float16"},
        {"dtype": "uint8"},
    ],
)
def test_numbers_that_no_run_has_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FedError):
        demands(**changes)


@pytest.mark.parametrize("wrong", [(), (0.5,) * 2, (float("nan"),) * 3, (float("inf"),)])
def test_a_normalisation_has_a_finite_number_per_channel(wrong: tuple[float, ...]) -> None:
    for seat in (replace(SEAT, mean=wrong), replace(SEAT, std=wrong), replace(SEAT, std=(-1.0,))):
        with pytest.raises(FedError):
            Demands(seat, Site(), own_data=False)


def test_a_batch_that_would_take_too_much_memory_is_refused() -> None:
    found = demands(image_shape=(3, 1024, 1024))
    found.require_data(100)
    found.require_round(rules(), steps=1, batch=2)
    with pytest.raises(
        RefusedError, match=r"batches of 100 would take about \d+ MB, .* --max-parameters \d+$"
    ):
        found.require_round(rules(), steps=1, batch=100)
    with pytest.raises(RefusedError):
        found.require_round(rules(validation=0.5), steps=1, batch=2)


def test_the_flag_that_a_refusal_names_is_enough() -> None:
    with pytest.raises(RefusedError) as caught:
        demands(width=50.0, name="vgg11")
    enough = int(str(caught.value).rpartition(" ")[2])
    demands(Site(max_parameters=enough), width=50.0, name="vgg11")
    with pytest.raises(RefusedError) as caught:
        demands().require_data(10**9)
    enough = int(str(caught.value).rpartition(" ")[2])
    demands(Site(max_parameters=enough)).require_data(10**9)


def test_a_plug_ins_parameters_are_counted_once_it_is_built() -> None:
    site = Site(plugins=frozenset({"mine:f"}), max_parameters=10)
    found = demands(site, name="mine:f")
    found.require_built(Layout([TensorSpec("w", "float32", (5, 2), Purpose.MODEL)]))
    with pytest.raises(RefusedError, match="the model has 11 parameters, this client takes 10"):
        found.require_built(Layout([TensorSpec("w", "float32", (11,), Purpose.MODEL)]))


def test_a_data_set_that_the_server_names_matters_only_to_who_has_none() -> None:
    seat = replace(SEAT, dataset="evil:main")
    Demands(seat, Site(), own_data=True)
    with pytest.raises(RefusedError, match="--allow-plugin evil:main"):
        Demands(seat, Site(), own_data=False)


@pytest.mark.parametrize(
    "path",
    [
        "/home/jane/data/train",
        "/home/J Smith/data/train",
        "/srv/patients/Mary Anne Smith 1.png",
        "data/train/Mary Anne Smith.png",
        "C:\\Users\\jane\\pictures",
        "~/pictures",
        str(Path.cwd()),
        str(Path.home() / "x y" / "z"),
        sys.prefix,
    ],
)
@pytest.mark.parametrize(
    "text", ["{} is not a directory", "training failed: OSError(2, 'gone: {}')", "no module in {}; add one"]
)
def test_a_reason_is_told_without_paths(text: str, path: str) -> None:
    heard = told(text.format(path))
    assert heard == text.format("[a path of this client]")


def test_the_data_directory_is_not_told_whatever_its_name() -> None:
    absolute = Path("a b/c d").absolute()
    assert told(f"{absolute} is empty", "a b/c d") == "[a path of this client] is empty"
    assert told("a b/c d/train is empty", "a b/c d") == "[a path of this client] is empty"


def test_a_reason_is_told_where_the_current_directory_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert told("/x/y is empty") == "[a path of this client] is empty"


def test_other_reasons_are_told_as_they_are() -> None:
    for reason in (
        "the loss is nan at step 3; lower --eta-l",
        "m:f: expected nn.Module, got int",
        "10.0.0.1:1",
    ):
        assert told(reason) == reason
    assert len(told("x" * 2_000)) == MOST
