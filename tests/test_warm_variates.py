"""Variates that start as gradients at the first x: the paper's equations, the wire, and kills."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from common.algorithms import ALGORITHMS
from common.data import datasets
from common.data.batches import Batches
from common.errors import ConfigError
from common.models.build import build_model, classifier_names, tensor_specs
from common.models.spec import ModelSpec
from common.tensors.layout import Layout, Purpose, TensorSpec
from common.tensors.torch_views import flatten, tensor_views
from common.wire.messages import is_gradient
from fedclient.training.task import Task
from fedclient.training.train import Trainer
from fedserver.config import RunConfig
from fedwire.replay.replay import Replay
from fedwire.source import Capture
from fedwire.stats import compare_with_run, statistics
from fedwire.transfers import Transfers
from tests.killpoint import trap
from tests.processes import Federation, lasting_address
from tests.rules import rules
from tests.test_federation import FLAGS, PARAMETERS, SHARDS, assert_equal
from tests.test_local_rules import HEAD, Simulated, computed, simulated

__all__ = ["simulated"]
WARM = [*FLAGS, "--warm-variates"]


@pytest.mark.parametrize(
    ("settings", "svr", "terms"),
    [
        ({"algorithm": "fedpvr"}, HEAD, {}),
        ({"algorithm": "scaffold"}, PARAMETERS, {}),
        ({"algorithm": "fedpvr", "weighting": "examples"}, HEAD, {"weights": [9.0, 22.0, 29.0]}),
        (
            {"algorithm": "scaffold", "weight_decay": 0.1, "weight_decay_on": "all"},
            PARAMETERS,
            {"weight_decay": 0.1, "decayed": PARAMETERS},
        ),
        (
            {"algorithm": "fedpvr", "clip_norm": 0.1, "clip_on": "all", "momentum": 0.5},
            HEAD,
            {"clip_norm": 0.1, "clipped": PARAMETERS, "momentum": 0.5, "heavy": PARAMETERS[:4]},
        ),
    ],
    ids=str,
)
def test_a_warm_run_is_that_of_plain_loops(
    simulated: Simulated, settings: dict[str, Any], svr: list[str], terms: dict[str, Any]
) -> None:
    x, c = computed(svr, warm=True, **terms)
    found_x, found_c = simulated(warm_variates=True, **settings)
    assert_equal(found_x, x)
    assert_equal(found_c, c)


@pytest.mark.parametrize("settings", [{"eta_g": 1.0}, {"eta_g": 0.7}, {"clients_per_round": 2}], ids=str)
def test_derived_variates_start_warm_too(simulated: Simulated, settings: dict[str, Any]) -> None:
    runs = [simulated(warm_variates=True, variates=how, **settings) for how in ("explicit", "derived")]
    for one, other in zip(*runs, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_c_stays_the_mean_of_all_variates_where_some_have_only_their_first(
    simulated: Simulated, tmp_path: Path
) -> None:
    _, c = simulated(warm_variates=True, clients_per_round=1, rounds=2)
    c_is = [load_file(file) for file in sorted((tmp_path / "run" / "ledger").iterdir())]
    assert any(
        file.name.endswith("round-000000.safetensors") for file in (tmp_path / "run" / "ledger").iterdir()
    )
    assert len(c_is) == 3
    for name, value in c.items():
        mean = torch.stack([c_i[name] for c_i in c_is]).mean(0)
        torch.testing.assert_close(mean, value, rtol=0, atol=1e-14)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation in which nothing went wrong."""
    federation = Federation(tmp_path_factory.mktemp("undisturbed"))
    start(federation, "--capture", "run.fedwire")
    federation.finish()
    yield federation
    federation.close()


def start(federation: Federation, *flags: str, **traps: Any) -> None:
    """Server and clients; `traps` are what some go through."""
    (federation.folder / "shards.json").write_text(json.dumps({"clients": SHARDS}))
    federation.server(*WARM, *flags)
    for name in ("a", "b", "c"):
        federation.client(name, through=traps.get(name, ()))


def test_a_federation_equals_its_simulation_and_its_replay(
    undisturbed: Federation, simulated: Simulated
) -> None:
    x, c = simulated(warm_variates=True, rounds=4, local_steps=3, norm_bound=2.0)
    for name, tensors in (("model", x), ("control", c)):
        found = undisturbed.tensors(name)
        assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())
    with closing(Capture(undisturbed.folder / "run.fedwire", pytest.fail)) as capture:
        verdicts = Replay(capture, undisturbed.folder / "run").run()
        assert not compare_with_run(statistics(capture), undisturbed.folder / "run")
        gradients = [t for t in Transfers(capture) if t.up and is_gradient(t.header)]
    assert [(each.round, each.same) for each in verdicts] == [(r, True) for r in range(5)]
    assert len(gradients) == 3
    purposes = {spec.purpose for t in gradients for spec in t.encoding.layout.specs}
    assert purposes == {Purpose.CONTROL}, "no model comes back"


def test_round_1_has_the_bytes_of_the_first_variates(undisturbed: Federation) -> None:
    """x goes down once more, c_i goes up and comes back, and c goes down in every round."""
    first, second, *_ = (record["bytes"] for record in undisturbed.rounds())
    d, v = second["down"]["model"], second["down"]["control"]
    assert first["down"]["model"] == 2 * d
    assert first["down"]["control"] == 2 * v
    assert (first["up"]["model"], first["up"]["control"]) == (d, 2 * v)
    assert [line["round"] for line in undisturbed.traffic()] == [1, 2, 3, 4]


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("point", "count"),
    [
        pytest.param("before the update counts", 2, marks=slow),
        ("before the checkpoint", 1),
        ("mid-count", 2),
        pytest.param("after the checkpoint", 1, marks=slow),
        pytest.param("before broadcast", 2, marks=slow),
        pytest.param("before the update counts", 5, marks=slow),
        pytest.param("before the checkpoint", 2, marks=slow),
    ],
)
def test_a_server_that_is_killed_around_the_first_variates_goes_on(
    undisturbed: Federation, federation: Federation, point: str, count: int
) -> None:
    (federation.folder / "shards.json").write_text(json.dumps({"clients": SHARDS}))
    address = federation.server(
        *WARM, listen=lasting_address(), name="first", through=trap("kill", point, count)
    )
    for name in ("a", "b", "c"):
        federation.client(name)
    federation.wait_for_death("first")
    federation.server(*WARM, listen=address)
    federation.finish()
    for file in ("model", "control"):
        assert federation.bytes(file) == undisturbed.bytes(file)
    assert [record["norms"] for record in federation.rounds()] == [
        record["norms"] for record in undisturbed.rounds()
    ]


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("before the first gradient", 1),
        pytest.param("mid-upload", 1, marks=slow),
        pytest.param("before training", 1, marks=slow),
        pytest.param("mid-upload", 2, marks=slow),
    ],
)
def test_a_client_that_is_killed_around_its_first_variate_has_it_again(
    undisturbed: Federation, federation: Federation, point: str, count: int
) -> None:
    start(federation, b=trap("kill", point, count))
    federation.wait_for_death("b")
    federation.client("b")
    federation.finish()
    for file in ("model", "control"):
        assert federation.bytes(file) == undisturbed.bytes(file)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--canary"], ["--codec", "int8", "--codec", "control=fp16"]], ids=str)
def test_it_goes_with_a_rehearsal_and_with_codecs(federation: Federation, flags: list[str]) -> None:
    start(federation, *flags, "--capture", "run.fedwire")
    federation.finish()
    log = federation.log("server")
    assert log.index("c is the mean gradient of 3 clients") < log.index("round 1/4")
    with closing(Capture(federation.folder / "run.fedwire", pytest.fail)) as capture:
        verdicts = Replay(capture, federation.folder / "run").run()
    assert [each.round for each in verdicts] == [0, 1, 2, 3, 4]
    if flags == ["--canary"]:
        assert all(each.same for each in verdicts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedavg"}, "--warm-variates needs a control variate, --algorithm fedavg has none"),
        ({"algorithm": "feddyn"}, "--warm-variates needs a control variate, --algorithm feddyn has none"),
        ({"min_clients": 2}, "--warm-variates asks all clients .* --min-clients lets some come later"),
    ],
    ids=str,
)
def test_what_does_not_go_with_it_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(warm_variates=True, **settings)


def test_it_needs_something_in_s_svr(simulated: Simulated) -> None:
    with pytest.raises(ConfigError, match=re.escape("--warm-variates needs parameters in S_svr")):
        simulated(warm_variates=True, svr=("none",))


def asked(model: str) -> tuple[Trainer, Task]:
    """A client of 20 digits that is asked for its gradient at the first x."""
    network = build_model(ModelSpec(name=model, num_classes=10, image_shape=(1, 32, 32), width=0.25), 0)
    specs, names = tensor_specs(network), classifier_names(network)
    control = [TensorSpec(s.name, s.dtype, s.shape, Purpose.CONTROL) for s in specs if s.name in names]
    layout = Layout([*specs, *control])
    x = flatten(network, Layout(specs))
    broadcast = layout.allocate()
    broadcast[: len(x)] = x
    rule = rules(gradient_only=True, warm_variates=True, batch_size=8)
    data = datasets.resized(datasets.load("digits", "train").subset(np.arange(20)), (32, 32))
    task = Task(rules=rule, layout=layout, broadcast=broadcast, encoding=rule.update_encoding(layout))
    return Trainer(network, Batches(data), 0, 0), task


@pytest.mark.parametrize("model", ["resnet8-bn", "vgg11"])
def test_the_gradient_is_the_same_twice_and_leaves_x_and_its_statistics_alone(model: str) -> None:
    """ResNet-8 has norms that count in training, VGG-11 dropout in its classifier."""
    client, task = asked(model)
    before, none = task.broadcast.copy(), task.state_layout.allocate()[:0]
    one = client.first_variate(task, none).payload.copy()
    torch.manual_seed(1)
    two = client.first_variate(task, none).payload
    assert np.array_equal(one, two)
    assert np.array_equal(task.broadcast, before)
    assert all(torch.isfinite(g).all() and g.any() for g in tensor_views(task.encoding.layout, one).values())
    state = ALGORITHMS["fedpvr"].variates(task.layout)
    assert [s.name for s in state.specs] == [s.name for s in task.encoding.layout.specs]
