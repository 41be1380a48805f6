"""A round that is killed goes on inside itself, and ends in the same bits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from common.algorithms import ALGORITHMS
from common.data import datasets
from common.data.batches import Batches
from common.events import Event, unheard
from common.models.build import classifier_names, tensor_specs
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from common.tensors.torch_views import flatten
from common.wire.encoding import Encoding
from fedclient.midround.events import SaveDamaged, SaveFailed, SaveStale
from fedclient.midround.file import MidRoundFile
from fedclient.midround.saving import Saving, UnderWay
from fedclient.store.state import RunFiles
from fedclient.training.local_steps import LocalSteps
from fedclient.training.task import Task, Update
from fedclient.training.train import Trainer
from fedclient.worth.known import known_run
from fedlab.simulation import simulate
from fedserver.config import RunConfig
from tests.killpoint import trap
from tests.processes import Federation
from tests.rules import rules

STEPS, PER_EPOCH = 50, 5
ALWAYS_S = 1e-9
DROPOUT = """
from torch import nn

def network(num_classes):
    features = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()
    return nn.Sequential(*features, nn.Linear(256, num_classes))
"""


class Killed(BaseException):
    """What stands for SIGKILL inside a process."""


def network() -> nn.Module:
    """With buffers, and with a random stream of its own in training."""
    scope: dict[str, Any] = {}
    exec(DROPOUT, scope)
    torch.manual_seed(3)
    model: nn.Module = scope["network"](10)
    return model


def task(algorithm: str = "fedpvr", **changes: object) -> Task:
    """Ten epochs of five steps, with all that has a state between steps."""
    model, method = network(), ALGORITHMS[algorithm]
    specs = tensor_specs(model)
    parameters = [spec.name for spec in specs if spec.purpose is Purpose.MODEL]
    svr = method.svr(parameters, classifier_names(model))
    layout = Layout(
        [*specs, *(TensorSpec(s.name, s.dtype, s.shape, Purpose.CONTROL) for s in specs if s.name in svr)]
    )
    x = flatten(model, Layout(specs))
    down = layout.allocate()
    down[: len(x)] = x
    usual: dict[str, object] = {
        "algorithm": algorithm,
        "local_epochs": 10,
        "batch_size": 10,
        "momentum": 0.9,
        "augment": True,
        "validation": 0.1,
        "eta_l": 0.01,
        "prox_weight": 0.1 if method.prox_setting else 0.0,
    }
    return Task(rules=rules(**(usual | changes)), layout=layout, broadcast=down, encoding=Encoding(layout))


def c_i(asked: Task) -> Flat:
    """A variate that is not zero."""
    layout = asked.state_layout
    flat = layout.allocate()
    for k in range(len(layout.specs)):
        array = layout.array(flat, k)
        array[:] = np.random.default_rng(k).normal(size=array.shape) * 0.01
    return flat


def trained(
    asked: Task, saving: Saving | None = None, before_step: Callable[[int], None] = lambda step: None
) -> Update:
    """By a new process, as it were."""
    batches = Batches(datasets.load("digits", "train").subset(np.arange(56)))
    numbers = itertools.count(1)
    take = LocalSteps.take

    def counted(self: LocalSteps, loss: Tensor) -> None:
        before_step(next(numbers))
        take(self, loss)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalSteps, "take", counted)
        return Trainer(network(), batches, 0, 0, saving=saving).train(asked, c_i(asked))


def dies_at(step: int) -> Callable[[int], None]:
    """Ends training before that step."""

    def before(number: int) -> None:
        if number == step:
            raise Killed

    return before


def saving(folder: Path, events: list[Event] | None = None, every_s: float = ALWAYS_S) -> Saving:
    """With a save after every step, unless that is said otherwise."""
    emit = unheard if events is None else events.append
    return Saving(MidRoundFile(folder / "midround.safetensors"), "run", every_s, emit)


def same(one: Update, other: Update) -> bool:
    """In all that counts."""
    parts = [
        (u.payload.tobytes(), u.state.tobytes(), u.steps, u.loss, u.validation_accuracy) for u in (one, other)
    ]
    return parts[0] == parts[1]


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(a, marks=[pytest.mark.slow] * (a in ("fedavg", "fedprox"))) for a in ALGORITHMS],
)
def test_a_round_killed_in_its_last_epoch_goes_on_to_the_same_bits(tmp_path: Path, algorithm: str) -> None:
    """With momentum, crops, dropout, batch norm and a variate."""
    asked, events, again = task(algorithm), list[Event](), list[int]()
    with pytest.raises(Killed):
        trained(asked, saving(tmp_path), dies_at(48))
    update = trained(asked, saving(tmp_path, events), again.append)
    assert [event.text() for event in events] == [f"round 1: resumed at step 47 of {STEPS}"]
    assert len(again) == STEPS - 47
    assert same(update, trained(asked))


def test_a_round_killed_again_and_again_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    asked = task(augment=False)
    for step in (7, 1, 13, 20):
        with pytest.raises(Killed):
            trained(asked, saving(tmp_path), dies_at(step))
    events: list[Event] = []
    assert same(trained(asked, saving(tmp_path, events)), trained(asked))
    assert [event.text() for event in events] == [f"round 1: resumed at step {6 + 12 + 19} of {STEPS}"]


def test_saves_are_due_at_epoch_ends_and_every_so_often_and_never_in_a_short_round(tmp_path: Path) -> None:
    """A step takes three seconds, an epoch fifteen."""

    def saved(every_s: float, step_s: float) -> list[int]:
        clock, steps = [0.0], []
        file = MidRoundFile(tmp_path / "due.safetensors")
        made = UnderWay(
            Saving(file, "run", every_s, unheard, lambda: clock[0]),
            1,
            (4 * PER_EPOCH, PER_EPOCH),
            lambda: "me",
            lambda: {"loss": torch.zeros(())},
        )
        for step in range(1, 4 * PER_EPOCH + 1):
            clock[0] += step_s
            made.made(step)
            if file.there():
                steps.append(step)
                file.drop()
        return steps

    assert saved(60.0, 3.0) == [5, 10, 15]
    assert saved(6.0, 3.0) == [2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert saved(60.0, 0.8) == [15]
    assert saved(60.0, 0.375) == []
    assert saved(60.0, 30.0) == [2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19]


@pytest.mark.parametrize("other", [{"round": 2}, {"eta_l": 0.02}, {"algorithm": "fedavg"}])
def test_a_save_of_another_round_or_of_other_settings_is_removed(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    with pytest.raises(Killed):
        trained(task(**other), saving(tmp_path), dies_at(9))
    events: list[Event] = []
    assert same(trained(task(), saving(tmp_path, events, every_s=60.0)), trained(task()))
    assert [type(event) for event in events] == [SaveStale]
    assert not [*tmp_path.iterdir()]


def test_a_save_of_another_x_is_removed(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(task(), saving(tmp_path), dies_at(9))
    asked, events = task(), list[Event]()
    asked.layout.array(asked.broadcast, 0)[0] += 1.0
    assert same(trained(asked, saving(tmp_path, events, every_s=60.0)), trained(asked))
    assert [type(event) for event in events] == [SaveStale]


def test_a_damaged_save_is_removed_and_the_round_trained_from_its_start(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(task(), saving(tmp_path), dies_at(9))
    path = tmp_path / "midround.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    events: list[Event] = []
    assert same(trained(task(), saving(tmp_path, events, every_s=60.0)), trained(task()))
    assert [type(event) for event in events] == [SaveDamaged]
    assert events[0].text().endswith("its checksum is wrong; removed, and training from the round's start")
    path.write_bytes(data[: len(data) // 2])
    assert same(trained(task(), saving(tmp_path)), trained(task()))


def test_a_disk_that_takes_no_save_does_not_end_the_round(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder is needed")
    events: list[Event] = []
    where = MidRoundFile(tmp_path / "taken" / "midround.safetensors")
    update = trained(task(), Saving(where, "run", ALWAYS_S, events.append))
    assert same(update, trained(task()))
    assert {type(event) for event in events} == {SaveFailed}


def test_a_stored_update_takes_the_place_of_the_save(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    assert files.midround is not None
    layout = Layout([TensorSpec("y", "float32", (2,))])
    forgetting: list[Callable[[], None]] = [lambda: files.store_update([b"update"]), files.end]
    for forget in forgetting:
        files.midround.write(layout, layout.allocate(), "me", 1)
        assert files.midround.read(layout, "me") is not None
        assert (tmp_path / "midround.safetensors").stat().st_mode & 0o777 == 0o600
        forget()
        assert not files.midround.there()


@pytest.mark.parametrize(
    ("algorithm", "variates"),
    [
        ("scaffold", "explicit"),
        pytest.param("fedpvr", "derived", marks=pytest.mark.slow),
        *(pytest.param(a, "explicit", marks=pytest.mark.slow) for a in ALGORITHMS if a != "scaffold"),
    ],
)
def test_a_client_killed_in_the_last_of_ten_epochs_repeats_at_most_one(
    federation: Federation, algorithm: str, variates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the second round, with a variate of the first; the calm run is a simulation."""
    (federation.folder / f"dropout_{algorithm}_{variates}.py").write_text(DROPOUT)
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "variates": variates,
        "model": f"dropout_{algorithm}_{variates}:network",
        "num_clients": 2,
        "rounds": 2,
        "local_epochs": 10,
        "batch_size": 100,
        "momentum": 0.5,
        "seed": 3,
    }
    monkeypatch.chdir(federation.folder)
    monkeypatch.syspath_prepend(str(federation.folder))
    simulate(RunConfig(**settings, augment=True), federation.folder / "calm", unheard)
    federation.server(
        "--augment", *(p for k, v in settings.items() for p in ("--" + k.replace("_", "-"), str(v)))
    )
    federation.client("client-1")
    steps = 10 * (718 // 100)
    killed = trap("kill", "mid-training", 2 * steps - 3)
    federation.client("client-0", "--save-every", "0.001", process="doomed", through=killed)
    federation.wait_for_death("doomed")
    federation.client("client-0")
    federation.finish()
    found = re.search(r"round 2: resumed at step (\d+) of (\d+)", federation.log("client-0"))
    assert found is not None, federation.log("client-0")
    assert int(found[2]) == steps
    assert steps * 9 // 10 <= int(found[1]) < steps - 3 + 1
    assert not [*(federation.folder / "state").rglob("midround*")]
    assert known_run(federation.folder / "state" / "client-0", None)[1].local_epochs == 10
    calm = load_file(federation.folder / "calm" / "model.safetensors")
    assert all(torch.equal(tensor, calm[name]) for name, tensor in federation.tensors("model").items())
