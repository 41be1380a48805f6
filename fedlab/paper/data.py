"""The data of scales: their sizes, for who plans without reading them, and shards of a part of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.data import datasets
from common.data.partition_file import write_partition
from fedserver.worker.partition import dirichlet_partition


@dataclass(frozen=True)
class Size:
    """How many examples of which shape."""

    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int

    def shape_at(self, image_size: object) -> tuple[int, int, int]:
        """Shape of an example at another height and width."""
        return (self.shape[0], image_size, image_size) if isinstance(image_size, int) else self.shape


DATA = {
    "digits": Size(1437, 360, (1, 8, 8), 10),
    "cifar10": Size(50_000, 10_000, (3, 32, 32), 10),
    "cifar100": Size(50_000, 10_000, (3, 32, 32), 100),
}


@dataclass(frozen=True, kw_only=True)
class Shards:
    """The first examples of a data set, shared out; the same for all algorithms."""

    dataset: str
    examples: int
    num_clients: int
    alpha: float | None
    """None where one client has everything."""
    seed: int

    def path(self, folder: Path) -> Path:
        """Where they are written."""
        if self.alpha is None:
            return folder / f"shards-{self.dataset}-first-{self.examples}.json"
        return folder / (
            f"shards-{self.dataset}-first-{self.examples}-{self.num_clients}-a{self.alpha:g}-seed{self.seed}.json"
        )

    def drawn(self, data_dir: str) -> list[npt.NDArray[np.int64]]:
        """Which example goes to whom."""
        if self.alpha is None:
            return [np.arange(self.examples)]
        labels = datasets.load(self.dataset, "train", data_dir).labels[: self.examples]
        return dirichlet_partition(labels, self.num_clients, self.alpha, self.seed)

    def write(self, folder: Path, data_dir: str) -> None:
        """Writes them unless they are there."""
        path = self.path(folder)
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_partition(path, self.drawn(data_dir))
