"""Local training: batches, step counts, reproducibility, divergence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from common.algorithms import ALGORITHMS
from common.data import datasets
from common.data.batches import Batches
from common.errors import DivergedError
from common.models.build import build_model, classifier_names, tensor_specs
from common.models.spec import ModelSpec
from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from common.tensors.torch_views import flatten
from common.wire.encoding import Encoding
from fedclient.training.task import Task, Update
from fedclient.training.train import Trainer
from tests.rules import rules
from tests.test_cli import invoke


def task(layout: Layout, down: Flat, **changes: object) -> Task:
    """A task with everything at its simplest, and changes."""
    return Task(
        rules=rules(**({"batch_size": 10} | changes)),
        layout=layout,
        broadcast=down,
        encoding=Encoding(layout),
    )


def trainer(n: int = 50, model: str = "cnn", seed: int = 0, index: int = 0) -> tuple[Trainer, Layout, Flat]:
    """A client with n digits, S_svr its classifier, and a first broadcast."""
    spec = ModelSpec(name=model, num_classes=10, image_shape=(1, 8, 8))
    network = build_model(spec, 0)
    specs = tensor_specs(network)
    names = classifier_names(network)
    control = [TensorSpec(s.name, s.dtype, s.shape, Purpose.CONTROL) for s in specs if s.name in names]
    layout = Layout([*specs, *control])
    down = layout.allocate()
    x0 = flatten(network, Layout(specs))
    down[: len(x0)] = x0
    batches = Batches(datasets.load("digits", "train").subset(np.arange(n)))
    return Trainer(network, batches, seed, index), layout, down


def zero(layout: Layout) -> Flat:
    """c_i at the start."""
    return ALGORITHMS["fedpvr"].variates(layout).allocate()


@pytest.mark.parametrize(
    ("n", "changes", "steps"),
    [
        (50, {"local_epochs": 3}, 15),
        (59, {"local_epochs": 2}, 10),
        (7, {"local_epochs": 2}, 2),
        (50, {"local_epochs": None, "local_steps": 12}, 12),
        (50, {"batch_size": None, "local_epochs": 4}, 4),
    ],
)
def test_k_i_counts_whole_batches(n: int, changes: dict[str, object], steps: int) -> None:
    client, layout, down = trainer(n)
    assert client.train(task(layout, down, **changes), zero(layout)).steps == steps


def test_an_epoch_sees_every_example_once_and_reshuffles() -> None:
    client, _, _ = trainer(50)
    batches = list(client._minibatches.indices(rules(local_epochs=2, batch_size=10)))
    first, second = torch.cat(batches[:5]), torch.cat(batches[5:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    assert first.tolist() != second.tolist()


def _update(**changes: object) -> Update:
    seed, index = int(str(changes.pop("seed", 0))), int(str(changes.pop("index", 0)))
    client, layout, down = trainer(seed=seed, index=index)
    return client.train(task(layout, down, **changes), zero(layout))


def test_training_depends_on_seed_round_and_client_and_on_nothing_else() -> None:
    changes: list[dict[str, object]] = [{}, {"seed": 1}, {"round": 2}, {"index": 1}]
    payloads = [_update(**change).payload.tobytes() for change in changes]
    assert _update().payload.tobytes() == payloads[0]
    assert len(set(payloads)) == 4


def test_training_leaves_the_broadcast_alone_and_can_be_repeated() -> None:
    client, layout, down = trainer()
    before = down.tobytes()
    first = client.train(task(layout, down), zero(layout))
    assert down.tobytes() == before
    assert client.train(task(layout, down), zero(layout)).payload.tobytes() == first.payload.tobytes()


def test_new_c_i_is_the_mean_gradient_and_momentum_spares_s_svr() -> None:
    """On S_svr the first step does not know of momentum; elsewhere the second one does."""
    client, layout, down = trainer()
    plain, heavy = (
        client.train(
            task(layout, down, momentum=m, local_epochs=None, local_steps=2, batch_size=None), zero(layout)
        )
        for m in (0.0, 0.9)
    )
    for index, spec in enumerate(layout.specs):
        same = np.array_equal(layout.array(plain.payload, index), layout.array(heavy.payload, index))
        if spec.purpose is Purpose.MODEL and spec.name.startswith("features"):
            assert not same, spec.name
    one_step = client.train(task(layout, down, batch_size=None, momentum=0.9), zero(layout))
    for k in layout.indices(Purpose.CONTROL):
        name = layout.specs[k].name
        at = next(m for m in layout.indices(Purpose.MODEL) if layout.specs[m].name == name)
        moved = (layout.array(down, at) - layout.array(one_step.payload, at)) / 0.1
        np.testing.assert_allclose(layout.array(one_step.payload, k), moved, rtol=1e-4, atol=1e-6)


def test_what_is_held_out_for_validation_is_not_trained_on() -> None:
    client, layout, down = trainer(50)
    half = task(layout, down, validation=0.4, batch_size=None)
    (trained,) = client._minibatches.indices(half.rules)
    train, held_out = client._minibatches.split(rules(validation=0.4))
    assert sorted([*train, *held_out]) == list(range(50))
    assert (len(held_out), trained.tolist()) == (20, train.tolist())
    update = client.train(half, zero(layout))
    assert update.validation_accuracy is not None
    assert 0 <= update.validation_accuracy <= 1
    assert client.train(task(layout, down), zero(layout)).validation_accuracy is None


def test_divergence_is_noticed() -> None:
    client, layout, down = trainer()
    with pytest.raises(DivergedError, match="lower --eta-l"):
        client.train(task(layout, down, eta_l=1e30), zero(layout))


def test_frozen_parameters_stay_what_they_are() -> None:
    client, layout, down = trainer()
    client._model.get_submodule("features.0").requires_grad_(False)
    payload = client.train(task(layout, down), zero(layout)).payload
    assert np.array_equal(layout.array(payload, 0), layout.array(down, 0))
    assert not np.array_equal(layout.array(payload, 2), layout.array(down, 2))


def test_augmented_training_runs_and_is_reproducible() -> None:
    once, again = (_update(augment=True).payload.tobytes() for _ in range(2))
    assert once == again != _update().payload.tobytes()


def test_training_matches_a_plain_torch_loop() -> None:
    """FedAvg (S_svr empty) with full batches is torch.optim.SGD."""
    client, layout, down = trainer()
    bare = layout.part(Purpose.MODEL)
    result = client.train(
        task(bare, down[: bare.num_bytes], batch_size=None, local_epochs=None, local_steps=3, momentum=0.9),
        Layout([]).allocate(),
    )
    model = build_model(ModelSpec(name="cnn", num_classes=10, image_shape=(1, 8, 8)), 0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = Batches(datasets.load("digits", "train").subset(np.arange(50))).batch(torch.arange(50))
    for _ in range(3):
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(images), labels))
        optimiser.step()
    for index, parameter in enumerate(model.parameters()):
        np.testing.assert_allclose(
            bare.array(result.payload, index), parameter.detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_training_on_copies_as_on_a_gpu_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the device is another one, tensors go there and come back."""
    client, layout, down = trainer(model="resnet8-bn")
    in_place = client.train(task(layout, down, validation=0.2), zero(layout))
    monkeypatch.setattr(
        "fedclient.training.train._on",
        lambda _, tensors: {name: tensor.clone() for name, tensor in tensors.items()},
    )
    copied = client.train(task(layout, down, validation=0.2), zero(layout))
    assert bytes(copied.payload) == bytes(in_place.payload)
    assert bytes(copied.state) == bytes(in_place.state)
    assert copied.validation_accuracy == in_place.validation_accuracy


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_one_line() -> None:
    result = invoke("fedclient", "run", "--device", "cuda")
    assert result.exit_code == 2
    assert result.output.splitlines()[-1].startswith("Error: --device cuda: torch finds no GPU here")
