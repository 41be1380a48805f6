"""Every tensor has one class: what is personal never leaves a client, what is frozen is sent once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from common.algorithms import ALGORITHMS, tensor_classes
from common.errors import ConfigError, WireError
from common.events import unheard
from common.models.build import build_model, classifier_names, tensor_specs
from common.models.spec import ModelSpec
from common.tensors.classes import FrozenTensors, TensorClass, TensorClasses
from common.tensors.layout import NOTHING, Layout, Purpose, TensorSpec
from common.wire.encoding import Encoding
from common.wire.manifest import manifest
from fedclient.rpc.download import Download
from fedclient.rpc.round_stream import receive_round
from fedclient.rpc.seat import Seat
from fedclient.run.prepare import seated_classes
from fedclient.store.state import RunFiles
from fedlab.direct.kept_state import KeptRunState, Together
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from tests import oracle, problem
from tests.killpoint import trap
from tests.processes import Federation, lasting_address, without_metadata
from tests.rules import rules
from tests.test_chaos import points
from tests.test_federation import ETA_L, FLAGS, ROUNDS, SHARDS, STEPS, assert_equal
from tests.test_fedwire import found

APART = ["--personal", "4", "--freeze", "0"]
PERSONAL, FROZEN, SHARED = ("4.weight", "4.bias"), ("0.weight", "0.bias"), ("2.weight", "2.bias")
SPECS = [
    TensorSpec("conv.weight", "float32", (2, 2)),
    TensorSpec("bn.weight", "float32", (2,)),
    TensorSpec("bn.running_mean", "float32", (2,), Purpose.BUFFER),
    TensorSpec("head.weight", "float32", (3, 2)),
]
CHAOS = [
    *("--model", "problem:network", "--dataset", "problem:data", "--num-clients", "2"),
    *("--rounds", str(ROUNDS), "--local-steps", "3", "--algorithm", "scaffold", "--codec", "up=int8"),
]
DIGITS: dict[str, Any] = {"num_clients": 2, "rounds": 2, "local_steps": 1, "batch_size": 8}


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            {"personal": ("tail",)},
            "--personal 'tail' selects no tensor of conv.weight, bn.weight, bn.running",
        ),
        ({"freeze": ("nothing.*",)}, "--freeze 'nothing.\\*' selects no tensor of conv.weight"),
        ({"personal": ("bn",), "freeze": ("*.weight",)}, "bn.weight is selected by --personal and by --fr"),
        ({"svr": ("head",), "personal": ("head",)}, "head.weight is selected by --svr and by --personal"),
        ({"personal": ("*",)}, "leave no parameter to train together"),
    ],
)
def test_patterns_that_select_nothing_or_a_tensor_twice_are_refused(
    patterns: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tensor_classes("fedpvr", SPECS, ["head.weight"], **patterns)


def test_an_algorithms_own_choice_leaves_out_what_has_a_class_and_buffers_follow_their_module() -> None:
    classes = tensor_classes("scaffold", SPECS, ["head.weight"], personal=("bn.weight",), freeze=("conv",))
    assert classes.of == {
        "conv.weight": TensorClass.FROZEN,
        "bn.weight": TensorClass.PERSONAL,
        "bn.running_mean": TensorClass.PERSONAL,
        "head.weight": TensorClass.REDUCED,
    }
    assert [spec.purpose.name for spec in classes.broadcast.specs] == ["MODEL", "CONTROL"]
    alone = tensor_classes("fedavg", SPECS, [], personal=("*.running_mean",))
    assert alone.names(TensorClass.PERSONAL) == ("bn.running_mean",), "statistics alone may be personal"


def expected(**changes: Any) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """x and what is personal, by the oracle."""
    images, labels = problem.data("train")
    kept: list[dict[str, Tensor]] = []
    x, _ = oracle.train(
        lambda: problem.network(3).double(),
        [(images[shard], labels[shard]) for shard in SHARDS],
        rounds=ROUNDS,
        local_steps=STEPS,
        eta_l=ETA_L,
        eta_g=1.0,
        personal=PERSONAL,
        frozen=FROZEN,
        kept=kept,
        **changes,
    )
    return {name: value for name, value in x.items() if name not in PERSONAL}, kept


def personal_of(federation: Federation, client: str) -> dict[str, Tensor]:
    """What a client has kept after the last round."""
    (file,) = (federation.folder / "state" / client).glob(f"run-*/variate-{ROUNDS:06d}.safetensors")
    tensors = load_file(file)
    return {n.removeprefix("personal."): t for n, t in tensors.items() if n.startswith("personal.")}


METHODS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "fedpvr": (["--svr", "2"], {"svr": SHARED}),
    "fedavg": ([], {"svr": ()}),
    "scaffold": ([], {"svr": SHARED}),
    "fedprox": (["--mu", "0.5"], {"svr": (), "mu": 0.5}),
    "feddyn": (["--feddyn-alpha", "0.3"], {"svr": (), "feddyn_alpha": 0.3}),
}


@pytest.mark.parametrize(
    "algorithm",
    ["fedpvr", *(pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS if name != "fedpvr")],
)
def test_each_client_trains_its_own_part_by_the_equations_through_kills(
    federation: Federation, algorithm: str
) -> None:
    """Each client is killed twice, at other steps between a round's coming and its counting."""
    flags, changes = METHODS[algorithm]
    (federation.folder / "shards.json").write_text(json.dumps({"clients": SHARDS}))
    federation.server(*FLAGS, "--eta-g", "1", "--algorithm", algorithm, *flags, *APART, "--capture", "c")
    points = {
        "a": ("before the variate is written", "before the variate is settled"),
        "b": ("after the variate is written", "mid-training"),
        "c": ("after the update is kept", "a round has come"),
    }
    for name, (first, _) in points.items():
        federation.client(name, through=trap("kill", first, 1))
    for name, (_, second) in points.items():
        federation.wait_for_death(name)
        federation.client(name, through=trap("kill", second, 2))
    for name in ("b", "a", "c"):  # In this order each waits for the next one only.
        federation.wait_for_death(name)
        federation.client(name)
    federation.finish()
    x, kept = expected(**changes)
    assert_equal(federation.tensors("model"), x)
    for name, own in zip(points, kept, strict=True):
        assert_equal(personal_of(federation, name), own)
    _assert_nothing_personal_was_sent(federation, kept)
    _assert_frozen_tensors_came_once_or_until_they_were_kept(federation)


def _assert_nothing_personal_was_sent(federation: Federation, kept: list[dict[str, Tensor]]) -> None:
    """Ledger and capture agree, and neither names nor values of personal tensors are in a message."""
    capture, run = federation.folder / "c", str(federation.folder / "run")
    statistics = found("stats", str(capture), "--run-dir", run)
    assert statistics["differences"] == []
    assert {row["tensor"] for row in statistics["tensors"] if row["purpose"] != "other"} == {*FROZEN, *SHARED}
    assert [verdict["same"] for verdict in found("replay", str(capture), "--run-dir", run)] == [True] * ROUNDS
    data = capture.read_bytes()
    start: dict[str, Tensor] = {
        name: dict(problem.network(3).double().named_parameters())[name] for name in PERSONAL
    }
    everybody = [start, *kept]
    for own in everybody:
        assert all(tensor.detach().numpy().tobytes() not in data for tensor in own.values())


def _assert_frozen_tensors_came_once_or_until_they_were_kept(federation: Federation) -> None:
    size = 8 * (6 * 7 + 7)
    first, *others = (record["bytes"] for record in federation.rounds())
    assert first["down"]["frozen"] == 3 * size, "a kill after they are kept does not bring them again"
    for counts in others:
        assert "frozen" not in counts["down"]
        assert counts["down"]["model"] % (8 * (7 * 5 + 5)) == 0
    assert all("frozen" not in record["bytes"]["up"] for record in federation.rounds())


def test_a_client_that_lost_its_state_asks_for_frozen_tensors_and_starts_its_own_again(
    federation: Federation,
) -> None:
    (federation.folder / "shards.json").write_text(json.dumps({"clients": SHARDS}))
    federation.server(*FLAGS, *APART, "--algorithm", "fedavg")
    for name in ("a", "b"):
        federation.client(name)
    federation.client("c", through=trap("kill", "before training", 3))
    federation.wait_for_death("c")
    shutil.rmtree(federation.folder / "state" / "c")
    federation.client("c")
    federation.finish()
    assert "the personal tensors of round 2 are lost; they start again from the seed" in federation.log("c")
    counts = [record["bytes"]["down"].get("frozen", 0) for record in federation.rounds()]
    assert counts == [3 * 392, 0, 392, 0]
    assert (
        "2 tensors are shared, 2 personal, 2 frozen; 0 are in S_svr; x is not evaluated here"
        in federation.log("server")
    )
    assert {record["accuracy"] for record in federation.rounds()} == {None}


@pytest.mark.parametrize(
    "algorithm",
    ["fedpvr", *(pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS if name != "fedpvr")],
)
def test_a_simulation_with_classes_is_the_federation(federation: Federation, algorithm: str) -> None:
    """Momentum, validation and residuals of a codec are there too."""
    settings = DIGITS | {"rounds": 3, "algorithm": algorithm, "momentum": 0.5, "validation": 0.2}
    apart: dict[str, Any] = {"personal": ("classifier",), "freeze": ("features.0",), "codec": ("int8",)}
    simulate(RunConfig(**settings, **apart), federation.folder / "simulated", unheard)
    flags = [part for k, v in settings.items() for part in ("--" + k.replace("_", "-"), str(v))]
    federation.server(*flags, "--personal", "classifier", "--freeze", "features.0", "--codec", "int8")
    for i in range(2):
        federation.client(f"client-{i}")
    federation.finish()
    for file in ("model", "control"):
        simulated = without_metadata(federation.folder / "simulated" / f"{file}.safetensors")
        assert simulated == federation.bytes(file), file
    lines = (federation.folder / "simulated" / "rounds.jsonl").read_text().splitlines()
    for ours, theirs in zip(map(json.loads, lines), federation.rounds(), strict=True):
        for key in ("train_loss", "validation_accuracy", "drift", "bytes"):
            assert ours[key] == theirs[key], key


def rounds_of(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """The records of a simulation."""
    simulate(RunConfig(**DIGITS, **settings), folder, unheard)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_vgg11_with_frozen_convolutions_costs_what_its_classifier_costs(tmp_path: Path) -> None:
    records = rounds_of(tmp_path / "run", model="vgg11", width=0.25, algorithm="fedavg", freeze=("features",))
    network = build_model(ModelSpec(name="vgg11", num_classes=10, image_shape=(1, 8, 8), width=0.25), 0)
    sizes = {name: 4 * parameter.numel() for name, parameter in network.named_parameters()}
    trunk = sum(size for name, size in sizes.items() if name.startswith("features."))
    classifier = sum(sizes.values()) - trunk
    for record in records:
        for direction in ("down", "up"):
            assert record["bytes"][direction]["model"] == 2 * classifier
    assert records[0]["bytes"]["down"]["frozen"] == 2 * trunk
    assert "frozen" not in records[1]["bytes"]["down"]
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert model.keys() == sizes.keys(), "the server's model is whole"
    torch.testing.assert_close(model["features.0.weight"], network.state_dict()["features.0.weight"])
    assert records[-1]["accuracy"] is not None, "x is evaluated with the frozen tensors"


def test_personal_norms_keep_their_statistics_and_frozen_norms_use_theirs(tmp_path: Path) -> None:
    norms = ("*bn?", "*bn?.*", "*downsample.1.*")
    fedbn = rounds_of(
        tmp_path / "fedbn", model="resnet8-bn", width=0.25, algorithm="fedavg", personal=norms[1:]
    )
    assert fedbn[-1]["bytes"]["down"]["buffer"] == fedbn[-1]["bytes"]["up"]["buffer"] == 0
    names = load_file(tmp_path / "fedbn" / "model.safetensors").keys()
    assert not [name for name in names if "bn" in name or "downsample.1" in name]
    rounds_of(tmp_path / "still", model="resnet8-bn", width=0.25, algorithm="fedavg", freeze=("bn1",))
    frozen = load_file(tmp_path / "still" / "model.safetensors")
    assert frozen["bn1.num_batches_tracked"] == 0, "as in evaluation"
    assert frozen["layer1.0.bn1.num_batches_tracked"] > 0


def test_a_server_that_sends_frozen_tensors_unasked_or_wrongly_is_refused() -> None:
    classes = TensorClasses(SPECS, frozen=["conv.weight"])
    header = rules().to_header()
    header.tensors.extend(manifest(Encoding(classes.shared)))
    with pytest.raises(WireError, match="expected as FROZEN, not announced"):
        receive_round(header, iter(()), classes.shared, Download(), classes.frozen)
    header.tensors.extend(manifest(Encoding(classes.frozen)))
    with pytest.raises(WireError, match="no such FROZEN tensor in this run"):
        receive_round(header, iter(()), classes.shared, Download(), NOTHING)


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"personal": ("tail",)}, "the model has no tensor 'tail', which is to be personal"),
        ({"frozen": ("conv.weight",)}, "frozen tensors have a SHA-256"),
        ({"frozen_digest": "0" * 64}, "frozen tensors have a SHA-256"),
        (
            {"personal": ("bn.weight",), "frozen": ("bn.weight",), "frozen_digest": "0" * 64},
            "bn.weight is selected by --personal and by --freeze",
        ),
    ],
)
def test_a_server_whose_classes_make_no_sense_is_refused(claims: dict[str, Any], message: str) -> None:
    spec = ModelSpec(name="cnn", num_classes=2, image_shape=(1, 8, 8))
    seat = Seat("a1", 0, 1, 0, spec, "", (), (0.0,), (1.0,), None, [], **claims)
    with pytest.raises(WireError, match=message):
        seated_classes(seat, SPECS)


def test_frozen_tensors_are_kept_by_their_values(tmp_path: Path) -> None:
    layout = TensorClasses(SPECS, frozen=["conv.weight"]).frozen
    tensors = FrozenTensors(layout, layout.allocate())
    files = RunFiles(tmp_path / "run-1")
    assert files.frozen(layout, tensors.digest) is None, "they are not here yet"
    files.keep_frozen(tensors)
    assert files.frozen(layout, tensors.digest) is not None
    assert files.frozen(layout, "0" * 64) is None, "those are others"
    path = tmp_path / "run-1" / "frozen.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert files.frozen(layout, tensors.digest) is None, "a damaged file is asked for again"
    together = Together(tmp_path, layout, {}, 0)
    one, two = (KeptRunState(together, i) for i in range(2))
    kept = one.keep_frozen(tensors)
    assert two.frozen(layout, tensors.digest) is None, "each client gets them itself"
    assert two.keep_frozen(FrozenTensors(layout, layout.allocate())) is kept, "and a process has them once"


def test_a_model_without_a_classifier_of_its_own_needs_svr_only_where_something_is_reduced() -> None:
    network = problem.network(3)
    specs = tensor_specs(network)
    assert Layout(specs).num_bytes > 0
    classes = tensor_classes("fedpvr", specs, classifier_names(network), personal=("4",))
    assert classes.names(TensorClass.REDUCED) == (), "the classifier is personal, so nothing is reduced"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Nothing goes wrong."""
    federation = Federation(tmp_path_factory.mktemp("undisturbed"))
    federation.server(*CHAOS, *APART)
    for name in ("a", "b"):
        federation.client(name)
    federation.finish()
    yield federation
    federation.close()


def assert_same(federation: Federation, other: Federation) -> None:
    """x, and what each client keeps for itself, byte for byte."""
    assert federation.bytes("model") == other.bytes("model")
    for name in ("a", "b"):
        ours, theirs = (personal_of(each, name) for each in (federation, other))
        assert ours.keys() == theirs.keys() == set(PERSONAL)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.slow
@pytest.mark.parametrize("point", points(of_server=False))
def test_a_client_killed_at_a_point_keeps_what_is_personal(
    undisturbed: Federation, federation: Federation, point: str
) -> None:
    federation.server(*CHAOS, *APART)
    federation.client("b")
    saving = ("--save-every", "0.000001")
    federation.client("a", *saving, process="doomed", through=trap("kill", point, 2))
    federation.wait_for_death("doomed")
    federation.client("a", *saving)
    federation.finish()
    assert_same(federation, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["mid-fold", "before the checkpoint", "after the checkpoint"])
def test_a_server_killed_at_a_point_leaves_alone_what_is_personal(
    undisturbed: Federation, federation: Federation, point: str
) -> None:
    killed = trap("kill", point, 2)
    address = federation.server(*CHAOS, *APART, listen=lasting_address(), name="doomed", through=killed)
    for name in ("a", "b"):
        federation.client(name)
    federation.wait_for_death("doomed")
    federation.server(*CHAOS, *APART, listen=address)
    federation.finish()
    assert_same(federation, undisturbed)
