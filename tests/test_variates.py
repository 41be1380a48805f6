"""Derived variates and codecs in whole federations: the same training for fewer bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from common.errors import ConfigError, Fault, WireError
from common.server_step.updates import UpdateReader, stores_plain_floats
from common.tensors.layout import Layout, Purpose, TensorSpec
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from tests.killpoint import trap
from tests.processes import Federation, without_metadata
from tests.rules import rules

DIGITS: dict[str, Any] = {"num_clients": 3, "rounds": 5, "alpha": 0.3, "seed": 3, "momentum": 0.5}
DIGITS["width"] = 0.5
V = 330 * 4


def run(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """A simulated federation; returns its rounds."""
    simulate(RunConfig(**settings), folder, lambda line: None)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def same_results(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same x and c, byte for byte."""
    files = ("model.safetensors", "control.safetensors")
    return all(without_metadata(one / file) == without_metadata(other / file) for file in files)


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What FedAvg costs."""
    return run(tmp_path_factory.mktemp("fedavg") / "run", algorithm="fedavg", **DIGITS)


@pytest.mark.parametrize("algorithm", ["fedpvr", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_derived_trains_as_explicit_to_the_bit_at_the_uplink_of_fedavg(
    tmp_path: Path, fedavg: list[dict[str, Any]], algorithm: str
) -> None:
    explicit = run(tmp_path / "explicit", algorithm=algorithm, **DIGITS)
    derived = run(tmp_path / "derived", algorithm=algorithm, variates="derived", **DIGITS)
    assert same_results(tmp_path / "explicit", tmp_path / "derived")
    for ours, theirs, cheapest in zip(derived, explicit, fedavg, strict=True):
        assert ours["accuracy"] == theirs["accuracy"]
        assert ours["bytes"]["up"] == cheapest["bytes"]["up"], "to the byte, headers included"
        assert ours["bytes"]["down"]["control"] == 0
        assert theirs["bytes"]["up"]["control"] == theirs["bytes"]["down"]["control"] > 0


def test_c_is_sent_where_clients_cannot_know_it(tmp_path: Path) -> None:
    """Unequal shards make unequal K_i, so c does not follow from x; c_i still follows from y_i and K_i."""
    shards = [list(range(200)), list(range(200, 700)), list(range(700, 800))]
    (tmp_path / "shards.json").write_text(json.dumps({"clients": shards}))
    settings = DIGITS | {"rounds": 3, "partition": str(tmp_path / "shards.json"), "algorithm": "fedpvr"}
    run(tmp_path / "explicit", **settings)
    derived = run(tmp_path / "derived", variates="derived", **settings)
    assert same_results(tmp_path / "explicit", tmp_path / "derived")
    assert [record["bytes"]["down"]["control"] for record in derived] == [0, 3 * V, 3 * V]
    assert all(record["bytes"]["up"]["control"] == 0 for record in derived)


@pytest.mark.parametrize(
    "change",
    [
        {"eta_g": 0.5},
        pytest.param({"weighting": "examples"}, marks=pytest.mark.slow),
        pytest.param({"codec": ("down=fp16",)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_c_is_sent_where_x_is_not_the_plain_mean(tmp_path: Path, change: dict[str, Any]) -> None:
    settings = DIGITS | {"rounds": 3} | change
    run(tmp_path / "explicit", **settings)
    derived = run(tmp_path / "derived", variates="derived", **settings)
    assert same_results(tmp_path / "explicit", tmp_path / "derived")
    assert [record["bytes"]["down"]["control"] for record in derived] == [0, 3 * V, 3 * V]


def test_derived_is_refused_with_a_reason() -> None:
    for algorithm in ("fedavg", "fedprox", "feddyn"):
        with pytest.raises(ConfigError, match=f"needs a control variate .* --algorithm {algorithm} has none"):
            RunConfig(algorithm=algorithm, variates="derived")


def test_half_precision_is_not_computed_with() -> None:
    """Its elements are stored as bits; the server would add bit patterns."""
    for dtype, fine in (("float32", True), ("float64", True), ("bfloat16", False), ("float16", False)):
        assert stores_plain_floats(Layout([TensorSpec("w", dtype, (2,), Purpose.CONTROL)])) is fine


def test_an_update_whose_derived_variate_overflows_is_noticed_before_it_counts() -> None:
    specs = [TensorSpec("w", "float32", (2,)), TensorSpec("w", "float32", (2,), Purpose.CONTROL)]
    layout = Layout(specs)
    update_reader = UpdateReader(rules(derived=True), layout, layout.allocate())
    raw = update_reader.encoding.layout.allocate()
    update_reader.values(raw, None, 1)
    layout.array(raw, 0)[:] = 3e38
    with pytest.raises(WireError, match="control variate of this update is not finite") as caught:
        update_reader.values(raw, None, 1)
    assert caught.value.fault is Fault.NOT_FINITE


@pytest.mark.parametrize("rule", [{}, {"norm_bound": 50.0}, {"aggregation": "median"}, {"cka": 20}], ids=str)
def test_the_server_decodes_every_update_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    """When it has come: a client hears at once what is wrong with it, and the fold takes what was read."""
    decoded = []
    values = UpdateReader.values

    def counted(reader: UpdateReader, *arguments: Any) -> Any:
        decoded.append(reader.rules.round)
        return values(reader, *arguments)

    monkeypatch.setattr(UpdateReader, "values", counted)
    settings = {"num_clients": 3, "rounds": 2, "local_steps": 2, "variates": "derived", "codec": ("int8",)}
    settings["width"] = 0.25
    run(tmp_path / "run", **settings, **rule)
    assert decoded == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("flags", ["--variates derived --codec int8", "--codec fp16,control=int8,down=bf16"])
def test_server_and_client_never_disagree_about_c_i(federation: Federation, flags: str) -> None:
    settings = "--model problem:network --dataset problem:data --num-clients 2 --rounds 4 --local-steps 3"
    federation.server(*settings.split(), *flags.split())
    for name in ("a", "b"):
        federation.client(name)
    federation.finish()
    for index, name in enumerate(("a", "b")):
        counted = load_file(
            federation.folder / "run" / "ledger" / f"client-0000{index}-round-000004.safetensors"
        )
        (kept,) = (federation.folder / "state" / name).glob("run-*/variate-000004.safetensors")
        own = {n: t for n, t in load_file(kept).items() if not n.startswith("residual.")}
        assert own.keys() == counted.keys() == {"4.weight", "4.bias"}
        assert all((own[n] == counted[n]).all() for n in counted)


def test_a_killed_client_goes_on_with_what_its_codec_left_out(federation: Federation, tmp_path: Path) -> None:
    flags = "--num-clients 2 --rounds 5 --alpha 0.3 --local-steps 2 --codec topk:0.1 --algorithm fedavg"
    federation.server(*flags.split())
    federation.client("a")
    federation.client("b", through=trap("kill", "before training", 3))
    federation.wait_for_death("b")
    federation.client("b")
    federation.finish()
    settings: dict[str, Any] = {"num_clients": 2, "rounds": 5, "alpha": 0.3, "local_steps": 2}
    run(tmp_path / "undisturbed", algorithm="fedavg", codec=("topk:0.1",), **settings)
    assert same_results(federation.folder / "run", tmp_path / "undisturbed")


@pytest.mark.parametrize(
    "codec",
    [
        "fp16",
        "topk:0.25",
        pytest.param("int8", marks=pytest.mark.slow),
        pytest.param("bf16", marks=pytest.mark.slow),
        pytest.param("int8-tensor", marks=pytest.mark.slow),
    ],
)
def test_every_codec_trains_and_costs_what_it_says(
    tmp_path: Path, fedavg: list[dict[str, Any]], codec: str
) -> None:
    share = {"fp16": 0.5, "bf16": 0.5, "int8": 0.25, "int8-tensor": 0.25, "topk:0.25": 0.5}[codec]
    coded = run(tmp_path / "run", algorithm="fedavg", codec=(codec,), **DIGITS)
    sent, whole = (records[-1]["bytes"]["up"]["model"] for records in (coded, fedavg))
    assert sent / whole == pytest.approx(share, rel=0.01)
    assert coded[-1]["bytes"]["down"]["model"] == fedavg[-1]["bytes"]["down"]["model"]
    assert coded[-1]["accuracy"] == pytest.approx(fedavg[-1]["accuracy"], abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedpvr", "fedavg"])
def test_int8_updates_end_within_a_point_of_fp32_at_a_quarter_of_the_uplink(
    tmp_path: Path, algorithm: str
) -> None:
    """The demo's own setting."""
    demo: dict[str, Any] = {"num_clients": 5, "rounds": 15, "local_epochs": 5, "alpha": 0.1}
    full = run(tmp_path / "fp32", algorithm=algorithm, **demo)
    coded = run(tmp_path / "int8", algorithm=algorithm, codec=("int8", "control=int8"), **demo)
    assert abs(coded[-1]["accuracy"] - full[-1]["accuracy"]) <= 0.01
    total = [sum(sum(r["bytes"]["up"].values()) for r in records) for records in (coded, full)]
    assert total[0] / total[1] == pytest.approx(0.25, abs=0.01)
