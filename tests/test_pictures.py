"""Pictures in folders: read, refused, and in a federation with assigned shards; published sets offline."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.data import datasets, imagefolder, published
from common.errors import DataError
from common.events import Event, unheard
from fedclient.own_data import OwnDataset
from tests.processes import Federation


def draw(folder: Path, per_class: int, classes: tuple[str, ...] = ("cat", "dog"), size: int = 20) -> Path:
    """Pictures whose brightness tells the class."""
    random = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(per_class):
            pixels = random.integers(0, 60, (size, size + 2, 3)) + 120 * number
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{k}.png")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory with train and test."""
    draw(tmp_path / "train", 20)
    draw(tmp_path / "test", 5)
    return tmp_path


def test_an_image_folder_is_a_data_set(folder: Path) -> None:
    train = datasets.load("imagefolder", "train", str(folder), image_size=16)
    assert train.class_names == ("cat", "dog")
    assert train.images.shape == (40, 3, 16, 16)
    assert train.images[:20].mean() < 60 < train.images[20:].mean()
    assert np.bincount(train.labels).tolist() == [20, 20]


def test_a_clients_own_data_set_gets_the_labels_of_the_run_by_class_name(tmp_path: Path) -> None:
    """A client with fewer classes, or in another order, must not train one class as another."""
    draw(tmp_path / "train", 3, ("b", "c"))  # It tests nothing, so it needs no folder `test`.
    own = OwnDataset("imagefolder", str(tmp_path), None, unheard)
    assert own.class_names == ("b", "c")
    loaded = own.load(("a", "b", "c"), (3, 40, 40))
    assert loaded.class_names == ("a", "b", "c")
    assert loaded.labels.tolist() == [1, 1, 1, 2, 2, 2]
    assert loaded.images.shape == (6, 3, 40, 40)
    direct = datasets.load("imagefolder", "train", str(tmp_path), image_size=40)
    assert np.array_equal(loaded.images, direct.images), "decoded at the run's size, not scaled up from 32"
    half = OwnDataset("imagefolder", str(tmp_path), "1/2", unheard).load(("c", "b"), (3, 32, 32))
    assert half.labels.tolist() == [1, 0, 0]
    with pytest.raises(DataError, match="has class 'c', the run has a, b"):
        own.load(("a", "b"), (3, 32, 32))


def test_unreadable_pictures_are_left_out_with_one_line(folder: Path) -> None:
    (folder / "train" / "cat" / "broken.png").write_bytes(b"not a picture")
    whole = (folder / "train" / "cat" / "0.png").read_bytes()
    (folder / "train" / "cat" / "0.png").write_bytes(whole[:-30])
    told: list[Event] = []
    pictures = imagefolder.readable(imagefolder.list_pictures(folder / "train"), told.append)
    assert len(pictures) == 39
    assert [event.text() for event in told] == [
        "left out 2 of 41 pictures that cannot be read: "
        + ", ".join(str(folder / "train" / "cat" / name) for name in ("0.png", "broken.png"))
    ]


def test_folders_that_cannot_be_learned_from_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a directory"):
        imagefolder.list_pictures(tmp_path / "missing")
    with pytest.raises(DataError, match="has no pictures"):
        imagefolder.list_pictures(tmp_path)
    draw(tmp_path / "train", 2, ("only",))
    draw(tmp_path / "test", 2, ("only",))
    with pytest.raises(DataError, match="has one class only, 'only'"):
        datasets.load("imagefolder", "train", str(tmp_path))
    draw(tmp_path / "train", 2, ("second",))
    draw(tmp_path / "test", 2, ("third",))
    with pytest.raises(DataError, match="has class 'third'"):
        datasets.load("imagefolder", "test", str(tmp_path), image_size=9)
    (tmp_path / "x" / "c").mkdir(parents=True)
    (tmp_path / "x" / "c" / "a.png").write_text("no")
    with pytest.raises(DataError, match="all 1 are pictures that cannot be read"):
        imagefolder.readable(imagefolder.list_pictures(tmp_path / "x"), unheard)


def test_own_pictures_and_assigned_shards_train_together(federation: Federation, folder: Path) -> None:
    """One client has pictures of its own, of one class and another size; two get shards of the run's."""
    own = draw(federation.folder / "own", 12, ("dog",), size=33)
    whole = (own / "dog" / "3.png").read_bytes()
    (own / "dog" / "cut-off.png").write_bytes(whole[:-30])
    flags = (
        "--dataset imagefolder --model cnn --image-size 8 --num-clients 3 --rounds 4 --no-augment --eta-l 0.2"
    )
    federation.server(*flags.split(), "--data-dir", str(folder))
    federation.client("a", "--data-dir", str(folder))
    federation.client("b", "--data", str(own))
    federation.client("c", "--data-dir", str(folder))
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [3] * 4
    assert "client 2 of 3, 12 examples" in federation.log("b")
    broken = own / "dog" / "cut-off.png"
    assert f"left out 1 of 13 pictures that cannot be read: {broken}" in federation.log("b")
    clients = json.loads((federation.folder / "run" / "config.json").read_text())["clients"]
    assert [client["classes"] is None for client in clients] == [False, True, False]


def test_pictures_of_classes_the_run_does_not_have_are_refused(federation: Federation, folder: Path) -> None:
    own = draw(federation.folder / "own", 2, ("horse",))
    federation.server("--dataset", "imagefolder", "--num-clients", "1", "--data-dir", str(folder))
    federation.client("a", "--data", str(own))
    assert federation.exit_code("a") == 1
    assert "client 'a' has class 'horse', the run has cat, dog" in federation.log("a").splitlines()[-1]


def test_a_set_that_is_neither_there_nor_downloadable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"cifar10 is not in .* and cannot be downloaded"):
        datasets.load("cifar10", "train", str(tmp_path))


def test_published_sets_are_read_through_torchvision_once_and_then_mapped(tmp_path: Path) -> None:
    """A miniature in the format of Fashion-MNIST, so that nothing need be downloaded."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = (np.arange(30) % 10).astype(np.uint8)
    for part in ("train", "t10k"):
        head = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (30, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            b"\x00\x00\x08\x01" + (30).to_bytes(4, "big") + labels.tobytes()
        )
    first = published.read("fashion-mnist", "train", tmp_path)
    assert first.images.shape == (30, 1, 28, 28)
    assert first.class_names[9] == "Ankle boot"
    for file in raw.iterdir():
        file.unlink()
    again = published.read("fashion-mnist", "train", tmp_path)
    assert isinstance(again.images, np.memmap)
    assert np.array_equal(again.images[:, 0], images)
    assert again.labels.tolist() == labels.tolist()
    assert again.class_names == first.class_names


def test_images_can_be_made_smaller() -> None:
    small = datasets.load("digits", "test", image_size=4)
    whole = datasets.load("digits", "test")
    assert small.image_shape == (1, 4, 4)
    blocks = whole.images.reshape(-1, 1, 4, 2, 4, 2).mean((3, 5))
    assert np.abs(small.images - blocks).max() <= 0.5
