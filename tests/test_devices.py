"""Devices: their names, who takes which, and training with copies as on a GPU, to the same bits."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

import fedclient
import fedlab
import fedserver
from common.data import datasets
from common.data.batches import Batches
from common.devices.choice import placed
from common.devices.names import Accelerators, candidates, device_of, require_device
from common.devices.place import PROCESSOR, Place
from common.devices.trial import _tried, failure
from common.errors import ConfigError, DivergedError
from common.evaluate import evaluate
from common.events import Event, unheard
from common.models.build import build_model, tensor_specs
from common.models.memory_format import memory_format
from common.models.spec import ModelSpec
from common.tensors.classes import TensorClasses
from common.tensors.torch_views import flatten
from common.wire.encoding import Encoding
from fedclient.flags import Flags
from fedclient.midround.events import SaveStale, TrainingResumed
from fedclient.midround.file import MidRoundFile
from fedclient.midround.saving import Saving
from fedclient.replicas.identity import identified
from fedclient.training.local_steps import LocalSteps
from fedclient.training.own_tensors import OwnTensors
from fedclient.training.task import Task, Update
from fedclient.training.train import Trainer
from fedlab.engine.choice import EngineChoice
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from fedserver.worker.messages import CompareModels
from fedserver.worker.worker import Worker
from tests.elsewhere import Elsewhere, Forgetful, StrayTensorError, watched
from tests.processes import Federation
from tests.rules import rules
from tests.test_cli import invoke
from tests.test_replicas import GIVEN, NO_CREDENTIALS

STEPS = 6
TWO = Accelerators(gpus=2)


class Masked(nn.Module):
    """As the advice is: a constant mask is a buffer with persistent=False. And a plain tensor besides."""

    mask: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, num_classes)
        self.register_buffer("mask", (torch.arange(16) % 3 > 0).float(), persistent=False)
        self.scale = torch.full((16,), 0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.last(self.first(images.flatten(1)).relu() * self.mask * self.scale)
        return scores


def network(model: str, channels: int = 1) -> nn.Module:
    """With the same first values every time."""
    if model == "masked":
        torch.manual_seed(2)
        return Masked(10)
    return build_model(ModelSpec(name=model, num_classes=10, image_shape=(channels, 8, 8), width=0.5), 0)


def shard(channels: int = 1, n: int = 40) -> datasets.Dataset:
    """Digits, in as many colours."""
    digits = datasets.load("digits", "train").subset(np.arange(n))
    return replace(digits, images=np.repeat(digits.images, channels, 1), mean=digits.mean * channels)


def trained(model: str, place: Place, saving: Saving | None = None, **changes: Any) -> Update:
    """A round of FedAvg with all that has a state: momentum, crops, and what is held out."""
    channels, own = changes.pop("channels", 1), changes.pop("own", {})
    net = network(model, channels)
    classes = TensorClasses(tensor_specs(net), **own)
    usual = {"local_epochs": None, "local_steps": STEPS, "batch_size": 8, "augment": True, "momentum": 0.5}
    task = Task(
        rules=rules(**(usual | {"validation": 0.2, "eta_l": 0.05, "algorithm": "fedavg"} | changes)),
        layout=classes.shared,
        broadcast=flatten(net, classes.shared),
        encoding=Encoding(classes.shared),
        personal=classes.personal,
    )
    tensors = OwnTensors(net, classes)
    if classes.frozen.specs:
        tensors.take_frozen(flatten(net, classes.frozen))
    data = shard(channels)
    batches = Batches(data, place, memory_format(net, data.image_shape))
    trainer = Trainer(net, batches, 0, 0, tensors, saving=saving)
    if isinstance(place, Elsewhere):
        with watched(place):
            return trainer.train(task, tensors.fresh(task.state_layout))
    return trainer.train(task, tensors.fresh(task.state_layout))


def same(one: Update, other: Update) -> bool:
    """In all that counts."""
    parts = [
        (u.payload.tobytes(), u.state.tobytes(), u.steps, u.loss, u.validation_accuracy) for u in (one, other)
    ]
    return parts[0] == parts[1]


def test_a_name_stands_for_one_device_or_for_all_gpus() -> None:
    assert candidates("auto", Accelerators()) == candidates("cpu", TWO) == ("cpu",)
    assert candidates("auto", Accelerators(mps=True)) == candidates("mps", Accelerators(mps=True)) == ("mps",)
    assert (
        candidates("auto", Accelerators(gpus=2, mps=True)) == candidates("cuda", TWO) == ("cuda:0", "cuda:1")
    )
    assert candidates("cuda:1", TWO) == ("cuda:1",)


@pytest.mark.parametrize(
    ("text", "found", "reason"),
    [
        ("cuda:7", TWO, "torch finds 2 GPUs, cuda:0 to cuda:1"),
        ("cuda:1", Accelerators(gpus=1), "torch finds one GPU, cuda:0"),
        ("cuda", Accelerators(mps=True), "torch finds no GPU here"),
        ("cuda:0", Accelerators(), "torch finds no GPU here"),
        ("mps", TWO, "torch finds no Apple GPU here"),
    ],
)
def test_a_device_that_is_not_there_is_named_with_those_that_are(
    text: str, found: Accelerators, reason: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        candidates(text, found)
    assert str(raised.value).startswith(f"--device {text}: {reason}")
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:-1", "cuda:01", "cuda:1,2", "CUDA", "mps:0", ""])
def test_what_names_no_device_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--device must be auto, cpu, cuda"):
        require_device(text)


def test_workers_share_out_the_gpus_in_turn() -> None:
    assert [device_of(k, candidates("cuda", TWO)) for k in range(5)] == [f"cuda:{k % 2}" for k in range(5)]
    assert {device_of(k, candidates("cuda:1", TWO)) for k in range(5)} == {"cuda:1"}
    flags = EngineChoice(device="cuda", autocast="bf16").flags(("cuda:0", "cuda:1"))
    assert flags(3) == ("--device", "cuda:1", "--autocast", "bf16")


@pytest.mark.parametrize("by", ["name", "state_root"])
def test_replicas_and_clients_of_a_state_root_are_numbered_for_that(by: str, tmp_path: Path) -> None:
    flags = Flags(**GIVEN | {"state_dir": tmp_path, "name": "a", "replicas": 3})
    if by == "state_root":
        flags = Flags(**GIVEN | {"state_root": tmp_path, "replicas": 3})
    with ExitStack() as stack:
        taken = [stack.enter_context(identified(each, NO_CREDENTIALS)) for each in flags.of_replicas()]
        assert [each.flags.worker for each in taken] == [0, 1, 2]


COMMANDS = {
    "fedclient run": (),
    "fedclient check": (),
    "fedclient baseline": ("--dataset", "digits", "--state-dir", "."),
    "fedclient report": ("--dataset", "digits", "--state-dir", ".", "--model", "model.safetensors"),
    "fedlab simulate": (),
    "fedlab centralised": (),
    "fedlab compare": (),
    "fedlab reproduce": ("table2",),
}


@pytest.mark.parametrize("command", [*COMMANDS, "fedserver run"])
def test_every_command_that_computes_refuses_a_device_of_no_name(command: str) -> None:
    result = invoke(*command.split(), *COMMANDS.get(command, ()), "--device", "gpu")
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith("Error: --device must be auto, cpu,")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_computes_refuses_a_device_that_is_not_there(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has so many GPUs."""
    monkeypatch.chdir(tmp_path)
    result = invoke(*command.split(), *COMMANDS[command], "--device", "cuda:9999")
    assert result.exit_code == 2, result.output
    assert result.output.splitlines()[-1].startswith("Error: --device cuda:9999: torch finds ")


def test_a_server_hears_of_it_from_its_worker(federation: Federation) -> None:
    federation.start("server", "fedserver", "run", "--listen", "127.0.0.1:0", "--device", "cuda:9999")
    assert federation.exit_code("server") == 2
    assert federation.log("server").splitlines()[-1].startswith("Error: --device cuda:9999: torch finds ")


def test_replicas_hear_of_it_in_one_line(federation: Federation) -> None:
    federation.start("site", "fedclient", "run", "--replicas", "3", "--device", "cuda:9999")
    assert federation.exit_code("site") == 2
    (line,) = [line for line in federation.log("site").splitlines() if "Error" in line]
    assert line.startswith("Error: --device cuda:9999: torch finds ")


def test_nothing_is_copied_on_the_processor() -> None:
    tensor, data = torch.ones(3), shard()
    assert PROCESSOR.put(tensor) is tensor is PROCESSOR.fetch(tensor)
    assert Batches(data).images.data_ptr() == data.images.ctypes.data


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet8-bn", "masked"])
def test_training_elsewhere_gives_the_same_bits(model: str) -> None:
    place = Elsewhere()
    assert same(trained(model, place), trained(model, PROCESSOR))
    assert place.work[True] > 0 == place.work[False]


@pytest.mark.parametrize("changes", [{}, {"augment": False}])
def test_images_side_by_side_are_so_elsewhere_too(changes: dict[str, Any]) -> None:
    """ResNet-8 has pictures with three colours in channels_last."""
    changes |= {"channels": 3}
    assert same(trained("resnet8-bn", Elsewhere(), **changes), trained("resnet8-bn", PROCESSOR, **changes))


@pytest.mark.parametrize("changes", [{}, {"augment": False}])
def test_data_that_find_no_room_there_stay_behind(changes: dict[str, Any]) -> None:
    place = Elsewhere(roomy=False)
    assert same(trained("cnn", place, **changes), trained("cnn", PROCESSOR, **changes))
    assert place.work[False] == 0
    assert Batches(shard(), place).home is PROCESSOR
    assert Batches(shard(), Elsewhere()).home is not PROCESSOR


def test_personal_and_frozen_tensors_go_there_and_come_back() -> None:
    own = {"personal": ("bn1.weight", "bn1.bias", "bn1.running_mean"), "frozen": ("conv1.weight",)}
    names = {spec.name for spec in tensor_specs(network("resnet8-bn"))}
    assert names >= {*own["personal"], *own["frozen"]}
    there, here = (trained("resnet8-bn", place, own=own) for place in (Elsewhere(), PROCESSOR))
    assert same(there, here)
    assert len(there.state)


def test_the_loss_is_read_once_a_round_and_names_what_diverged() -> None:
    place = Elsewhere()
    update = trained("cnn", place, local_steps=40, validation=0.0)
    assert (place.reads, update.steps) == (1, 40)
    with pytest.raises(DivergedError, match=r"the loss is (nan|inf) after 40 steps; lower --eta-l"):
        trained("cnn", Elsewhere(), local_steps=40, eta_l=1e30)
    with pytest.raises(DivergedError, match=r"the loss is (nan|inf) after 32 steps; lower --eta-l"):
        trained("cnn", PROCESSOR, local_steps=40, eta_l=1e30)


def test_the_watch_notices_what_was_left_behind() -> None:
    """A GPU would refuse it too; so the tests above mean something."""
    with pytest.raises(StrayTensorError, match="was not put there"):
        trained("masked", Forgetful())
    assert same(trained("cnn", Forgetful()), trained("cnn", PROCESSOR))
    place = Elsewhere()
    with watched(place), pytest.raises(StrayTensorError, match="not fetched"):
        place.put(torch.ones(2)).numpy()


def test_a_round_that_was_saved_there_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    saving = Saving(MidRoundFile(tmp_path / "midround"), "run", 1e-9, events.append)
    left, take = iter(range(4)), LocalSteps.take

    def killed(self: LocalSteps, loss: Tensor) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        take(self, loss)

    with monkeypatch.context() as patch:
        patch.setattr(LocalSteps, "take", killed)
        with pytest.raises(KeyboardInterrupt):
            trained("resnet8-bn", Elsewhere(), saving)
    assert same(trained("resnet8-bn", Elsewhere(), saving), trained("resnet8-bn", PROCESSOR))
    (resumed,) = events
    assert isinstance(resumed, TrainingResumed)
    assert resumed.step == 4


def test_a_round_that_was_saved_with_other_arithmetic_is_trained_anew(tmp_path: Path) -> None:
    class Rough(Elsewhere):
        is_plain = False

    events: list[Event] = []
    saving = Saving(MidRoundFile(tmp_path / "midround"), "run", 1e-9, events.append)
    trained("mlp", Rough(), saving)
    assert saving.file.there()
    assert same(trained("mlp", PROCESSOR, saving), trained("mlp", PROCESSOR))
    assert [type(event) for event in events] == [SaveStale]


FEDERATIONS: dict[str, dict[str, Any]] = {
    "fedpvr": {"model": "cnn", "augment": True},
    "scaffold": {"model": "resnet8-bn", "width": 0.25, "clients_per_round": 1},
    "feddyn": {"model": "mlp", "feddyn_alpha": 0.1, "validation": 0.2, "codec": ("int8",)},
    "fedavg": {"model": "cnn", "personal": ("classifier",), "freeze": ("features.0",)},
}


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(a, marks=[pytest.mark.slow] * (a in ("fedpvr", "fedavg"))) for a in FEDERATIONS],
)
def test_a_federation_elsewhere_ends_with_the_same_files(algorithm: str, tmp_path: Path) -> None:
    settings = {"num_clients": 2, "rounds": 2, "local_steps": 4, "cka": 8} | FEDERATIONS[algorithm]
    if "personal" in settings:
        settings["cka"] = 0
    config, place = RunConfig(algorithm=algorithm, **settings), Elsewhere()
    simulate(config, tmp_path / "here", unheard)
    with watched(place):
        simulate(config, tmp_path / "there", unheard, lambda k: place)
    assert place.work[True] > 0 == place.work[False]
    for name in ("model", "control"):
        here, there = (load_file(tmp_path / run / f"{name}.safetensors") for run in ("here", "there"))
        assert {n: a.tobytes() for n, a in here.items()} == {n: a.tobytes() for n, a in there.items()}
    for name in ("conformal.json",):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_a_worker_evaluates_elsewhere_to_the_same_numbers(tmp_path: Path) -> None:
    config, place = RunConfig(model="resnet8-bn", width=0.25, num_clients=2, probe=64), Elsewhere()
    found = []
    for worker in (Worker(), Worker(place)):
        with watched(place):
            x0 = worker.prepare(config).x0
            flats = [x0, x0[::-1].copy() // 2]
            for k, flat in enumerate(flats):
                flat.tofile(tmp_path / str(k))
            first = worker.evaluate(x0)
            files = [tmp_path / str(k) for k in range(2)]
            similar = worker.cka(CompareModels.of(files, 16, "debiased"))
            found.append((first, worker.conformal(x0, range(2)), repr(similar)))  # NaN equals NaN there.
    assert found[0] == found[1]


def test_evaluation_is_there_and_what_is_counted_is_here() -> None:
    place, net = Elsewhere(), network("masked")
    expected = evaluate(network("masked"), Batches(shard()))
    for parameter in net.parameters():
        parameter.data = place.put(parameter.data)
    place.settle(net)
    with watched(place):
        assert evaluate(net, Batches(shard(), place)) == expected
    assert place.reads == 0


def test_lower_precision_is_tried_in_a_child_and_refused_in_one_line_if_that_dies() -> None:
    dying = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    assert failure([sys.executable, "-c", dying]) == f"ends with {signal.SIGILL.name}"
    assert failure([sys.executable, "-c", "raise ValueError('no such kernel')"]) == (
        "fails (ValueError: no such kernel)"
    )
    assert failure([sys.executable, "-c", ""]) == ""


def test_what_died_in_the_child_does_not_begin_in_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.devices.trial._tried", lambda device, autocast: "ends with SIGILL")
    result = invoke("fedlab", "simulate", "--autocast", "bf16", "--run-dir", "run")
    assert result.exit_code == 2
    line = "Error: --autocast bf16: a step of it here ends with SIGILL; leave --autocast out"
    assert result.output.splitlines() == [line]
    assert not (tmp_path / "run").exists()


def test_a_round_in_bf16_ends_near_the_same_model_or_is_refused_with_the_reason() -> None:
    """Some processors cannot, and say otherwise."""
    if _tried("cpu", "bf16"):
        with pytest.raises(ConfigError, match=r"--autocast bf16: a step of it here (ends with|fails) "):
            placed("cpu", "bf16")
        return
    exact, rough = trained("cnn", PROCESSOR), trained("cnn", placed("cpu", "bf16"))
    assert not same(exact, rough)
    assert rough.loss == pytest.approx(exact.loss, rel=0.05)
    assert rough.payload.dtype == exact.payload.dtype
    x, y = (update.payload.view(np.float32) for update in (exact, rough))
    assert np.abs(x - y).max() < 0.05


def test_precision_of_no_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="--autocast must be one of off, bf16, got 'fp8'"):
        placed("cpu", "fp8")


def test_float64_is_refused_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="--device mps has no float64"):
        Place("mps").put(torch.zeros(2, dtype=torch.float64))


def test_programs_are_told_the_same() -> None:
    for call in (partial(fedlab.simulate, rounds=1), partial(fedclient.join, "127.0.0.1:1"), fedserver.serve):
        with pytest.raises(ConfigError, match="--device must be auto, cpu, cuda"):
            call(device="gpu")


def test_a_run_says_where_it_computes_unless_that_is_the_processor(tmp_path: Path) -> None:
    class Rough(Elsewhere):
        is_plain = False

    for name, place, said in (("here", PROCESSOR, False), ("there", Rough(), True)):
        events: list[Event] = []
        config = RunConfig(num_clients=1, rounds=1, local_steps=1)
        simulate(config, tmp_path / name, events.append, lambda k, place=place: place)  # type: ignore[misc]
        assert ("computing on cpu" in [event.text() for event in events]) == said
