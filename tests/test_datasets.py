"""Data sets: the embedded digits and what users plug in."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from common.data import datasets
from common.data.batches import Batches
from common.errors import ConfigError, DataError
from fedclient.training.augment import Augmenter

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


def test_batches_in_channels_last_hold_the_same_images_also_when_they_are_augmented() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), np.uint8)
    dataset = datasets.Dataset("pictures", pictures, np.arange(6), datasets.numbered(6))
    rows, last = Batches(dataset), Batches(dataset, memory_format=torch.channels_last)
    chosen = torch.tensor([3, 1, 3])
    crops = [
        batches.scaled(Augmenter(batches.images).batch(chosen, np.random.default_rng(1)))
        for batches in (rows, last)
    ]
    for plain, ordered in ((rows.batch(chosen)[0], last.batch(chosen)[0]), crops):
        assert torch.equal(plain, ordered)
        assert (plain.stride(), ordered.stride()) == ((192, 64, 8, 1), (192, 1, 24, 3))


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


def test_broken_examples_of_a_factory_are_counted_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same are left whenever they are read; nothing is left out of what has none."""
    (tmp_path / "site_data.py").write_text(
        "import numpy as np\n"
        "def rows(bad):\n"
        "    good = [np.full(3, k, np.float32) for k in range(4)]\n"
        "    return [*good[:2], *bad, *good[2:]], [0, 1, *(0 for _ in bad), 0, 1]\n"
        "def ragged(split): return rows([np.zeros(2, np.float32), np.zeros((3, 1), np.float32)])\n"
        "def infinite(split): return rows([np.array([1, np.inf, 2], np.float32)])\n"
        "def all_bad(split): return np.full((2, 3), np.nan), [0, 1]\n"
    )
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    for name in ("ragged", "infinite", "ragged"):
        train = datasets.load(f"site_data:{name}", "train", emit=lambda event: told.append(event.text()))
        assert train.images[:, 0].tolist() == [0, 1, 2, 3]
        assert train.labels.tolist() == [0, 1, 0, 1]
    ragged = "left out 2 of 6 examples that have another shape than (3,): number 2 (2,), number 3 (3, 1)"
    assert told == [
        ragged,
        "left out 1 of 5 examples with numbers that are not finite: number 2",
        ragged,
    ]
    with pytest.raises(DataError, match=r"all 2 are examples with numbers that are not finite.*number 0"):
        datasets.load("site_data:all_bad", "train")


def test_unknown_data_sets_are_refused_with_the_choices() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown data set 'mnist'; choose digits, cifar10, .* or module:factory"
    ):
        datasets.load("mnist", "train")
