"""How large an experiment is: `tiny` for a first look, `small` for two cores, `paper` as published."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.data import datasets
from common.data.partition_file import write_partition
from fedlab.experiments import paper
from fedlab.experiments.methods import METHODS
from fedserver import presets
from fedserver.worker.partition import dirichlet_partition

Settings = dict[str, object]
"""Of a run, by name."""


@dataclass(frozen=True)
class Column:
    """A column of the tables: data set, model, heterogeneity."""

    dataset: str
    model: str
    alpha: float
    target: float
    """Accuracy that table 1 counts the rounds to."""
    options: Settings = field(default_factory=dict)
    """Settings of this column alone."""

    @property
    def name(self) -> str:
        """Its heading."""
        return f"{self.dataset} {self.model} a={self.alpha:g}"


@dataclass(frozen=True)
class Scale:
    """Columns, and the settings that all their runs share."""

    name: str
    columns: tuple[Column, ...]
    settings: Settings
    train_examples: int | None = None
    """How many training examples are shared out, from the first on; None: all."""
    central_rounds: int = 20
    """Epochs of the centralised baseline."""

    @property
    def num_clients(self) -> int:
        """N, which presets have too."""
        return int(str(self.settings.get("num_clients", 10)))

    def cell(self, column: Column, method: str, seed: int, folder: Path, data_dir: str) -> Settings:
        """The settings of one run."""
        found: Settings = dict(METHODS[method])
        if self.name == "paper":
            found |= {"preset": f"{column.dataset}-{column.model}-a{column.alpha}", "seed": seed}
        else:
            found |= {"dataset": column.dataset, "model": column.model, "seed": seed, "alpha": column.alpha}
        found |= self.settings | column.options | {"data_dir": data_dir}
        if self.train_examples is not None:
            found["partition"] = str(self._partition(column, seed, folder, data_dir))
        return found

    def central(self, column: Column, seed: int, folder: Path, data_dir: str) -> Settings:
        """The settings of the pooled baseline: one client that has everything, a round per epoch."""
        found = self.cell(column, "fedavg", seed, folder, data_dir)
        found |= {"num_clients": 1, "local_epochs": 1, "rounds": self.central_rounds}
        if self.train_examples is not None:
            path = folder / f"shards-first-{self.train_examples}.json"
            write_partition(path, [np.arange(self.train_examples)])
            found["partition"] = str(path)
        return found

    def _partition(self, column: Column, seed: int, folder: Path, data_dir: str) -> Path:
        """Shards of the first examples, written once and shared by all algorithms."""
        path = folder / f"shards-{column.dataset}-a{column.alpha:g}-seed{seed}.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            labels = datasets.load(column.dataset, "train", data_dir).labels[: self.train_examples]
            num_clients = self.num_clients
            write_partition(path, dirichlet_partition(labels, num_clients, column.alpha, seed))
        return path


_SMALL_IMAGES: Settings = {"image_size": 16, "augment": False}

SCALES = {
    "tiny": Scale(
        "tiny",
        (Column("digits", "cnn", 0.1, 0.85), Column("digits", "cnn", 0.5, 0.85)),
        {"num_clients": 10, "rounds": 15, "local_epochs": 5, "batch_size": 32, "eta_l": 0.1},
    ),
    "small": Scale(
        "small",
        (
            Column("cifar10", "mlp", 0.1, 0.33, _SMALL_IMAGES),
            Column("cifar10", "mlp", 0.5, 0.33, _SMALL_IMAGES),
            Column("cifar10", "resnet8", 0.1, 0.25, _SMALL_IMAGES | {"width": 0.5}),
        ),
        {"num_clients": 10, "rounds": 20, "local_epochs": 5, "batch_size": 50, "eta_l": 0.1},
        train_examples=4000,
    ),
    "paper": Scale(
        "paper",
        tuple(Column(*column, paper.TARGETS[column[0]]) for column in paper.COLUMNS),
        {"rounds": 100},
        central_rounds=800,
    ),
}
assert all(f"{c[0]}-{c[1]}-a{c[2]}" in presets.NAMES for c in paper.COLUMNS)
