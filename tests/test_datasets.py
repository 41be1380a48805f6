"""Data sets: the embedded digits and what users plug in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from common import plugin
from common.data import datasets
from common.data.batches import Batches
from common.errors import ConfigError, DataError

HERE = Path(__file__).parent


def test_digits_are_1797_images_of_ten_classes_in_two_splits() -> None:
    train, test = (datasets.load("digits", split) for split in ("train", "test"))
    assert (len(train.labels), len(test.labels)) == (1437, 360)
    assert train.image_shape == (1, 8, 8)
    assert (np.bincount(test.labels, minlength=10) > 20).all()
    together = np.concatenate([train.images, test.images]).reshape(1797, -1)
    assert len(np.unique(together, axis=0)) > 1790, "the splits do not share images"


def test_uint8_images_are_scaled_and_normalised() -> None:
    batches = Batches(datasets.load("digits", "train"))
    images, labels = batches.batch(torch.arange(len(batches)))
    assert images.dtype == torch.float32
    assert abs(images.mean().item()) < 1e-3
    assert images.std().item() == pytest.approx(1, abs=1e-3)
    assert labels.dtype == torch.int64


def test_batches_have_row_major_strides_whatever_those_of_the_data_set() -> None:
    """One channel with the strides of channels_last makes oneDNN write outside of its memory."""
    digits = datasets.load("digits", "train").subset(np.arange(6))
    assert torch.from_numpy(digits.images).stride() == (64, 1, 8, 1), "the strides that broke it"
    batches = Batches(digits)
    images, _ = batches.batch(torch.tensor([3, 1]))
    assert images.stride() == (64, 64, 8, 1)
    assert torch.equal(batches.images[:2].expand(2, 1, 8, 8), torch.from_numpy(digits.images[:2]))
    assert batches.scaled(torch.zeros(2, 8, 8, 1).permute(0, 3, 1, 2)).stride() == (64, 64, 8, 1)


@pytest.mark.parametrize("model", ["resnet8", "resnet8-bn"])
def test_a_narrow_residual_network_trains_on_digits_without_breaking_the_heap(
    tmp_path: Path, model: str
) -> None:
    """In a process of its own with a heap that is filled and checked: a broken one ends it with a signal."""
    flags = "--dataset digits --width 0.25 --num-clients 2 --rounds 1 --local-steps 10 --eval-every 0"
    ended = subprocess.run(
        [sys.executable, "-m", "fedlab", "simulate", "--model", model, *flags.split(), "--run-dir", "run"],
        cwd=tmp_path,
        env={**os.environ, "MALLOC_PERTURB_": "85", "MALLOC_CHECK_": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_floating_point_examples_are_taken_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(HERE / "problem.py", tmp_path / "plugged_data.py")
    monkeypatch.chdir(tmp_path)
    train = datasets.load("plugged_data:data", "train")
    assert (train.model_dtype, train.num_classes, train.image_shape) == ("float64", 3, (6,))
    assert np.array_equal(Batches(train).batch(torch.arange(60))[0].numpy(), train.images)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "expected factory.'train'. -> .images, labels., got TypeError"),
        ("raise OSError('gone')", "got OSError"),
        ("return np.zeros((3, 2), 'int32'), np.zeros(3, int)", "images must be uint8, float32, float64"),
        ("return np.zeros((3, 2)), np.zeros(3)", "labels must be a list of integers"),
        ("return np.zeros((3, 2)), np.zeros(4, int)", "4 labels do not fit images"),
        ("return np.zeros((0, 2)), np.zeros(0, int)", "0 labels do not fit images"),
        ("return np.zeros((3, 2)), np.array([0, -1, 2])", "labels must be from 0 to"),
    ],
)
def test_bad_data_factories_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    module = f"bad_data_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(f"import numpy as np\ndef f(split):\n    {body}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        datasets.load(f"{module}:f", "train")


def test_unknown_data_sets_are_refused_with_the_choices() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown data set 'mnist'; choose digits, cifar10, .* or module:factory"
    ):
        datasets.load("mnist", "train")


@pytest.mark.parametrize("name", ["os:system", "torch.nn:Linear", "subprocess:run"])
def test_a_server_cannot_name_code_outside_the_clients_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no module .* in the current directory"):
        plugin.load(name)


@pytest.mark.parametrize("name", [":f", "m:", "a b:f", "../m:f", "m:f.g", "m:f()"])
def test_names_that_are_not_module_and_factory_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected module:factory"):
        plugin.load(name)


def test_a_module_that_hides_behind_an_installed_one_is_not_confused_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("def f(n): return n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is another module already"):
        plugin.load("json:f")
