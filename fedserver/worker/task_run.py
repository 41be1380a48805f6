"""What is known of a run whose data are all at the clients, and what of it needs no torch at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import ConfigError, RunError
from common.models.spec import ModelSpec
from common.records.conformal import ConformalRecord
from common.records.rounds import Evaluation
from common.tensors.layout import Flat
from fedserver.config import RunConfig
from fedserver.tensors.init_file import InitFile, read_init
from fedserver.worker.messages import Prepared, Similarity


def task_model(config: RunConfig) -> ModelSpec:
    """The model of a task."""
    return ModelSpec(
        name=config.model,
        num_classes=len(config.classes),
        width=config.width,
        image_shape=config.example_shape,
        dtype="float32" if config.input_dtype == "uint8" else config.input_dtype,
    )


def of_task(config: RunConfig) -> dict[str, Any]:
    """What `Prepared` has besides the model."""
    require_images(config.example_shape, bool(config.augment))
    mean, std = config.normalisation
    return {
        "class_names": config.classes,
        "mean": mean,
        "std": std,
        "shards": ((),) * config.num_clients,
        "histograms": (),
        "augment": bool(config.augment),
    }


def require_images(shape: tuple[int, ...], augment: bool) -> None:
    """Raises for examples that are no images where images are needed."""
    if augment and len(shape) != 3:
        raise ConfigError(f"--augment needs images of shape CxHxW, got {shape}; use --no-augment")


def needs_torch(config: RunConfig) -> str:
    """Why the server has to build and evaluate the model itself, and what to give instead; empty if not."""
    if not config.has_task:
        return f"--dataset {config.dataset} is loaded and evaluated with it; give --task FILE.toml instead"
    if config.init is None:
        return "it makes the first weights; give --init FILE, written by fedlab model --export"
    return _unlike(config, read_init(config.init))


def _unlike(config: RunConfig, file: InitFile) -> str:
    if file.description is None:
        return f"--init {config.init} does not describe its model; write it with fedlab model --export"
    wanted, found = task_model(config), file.description.model
    different = [
        f"{name} is {getattr(found, name)}, the run's {value}"
        for name, value in vars(wanted).items()
        if getattr(found, name) != value
    ]
    if different:
        return f"--init {config.init} is of another model: {'; '.join(different)}"
    return ""


class TorchlessWorker:
    """Takes the model from a file that describes it; there is nothing to evaluate it on."""

    async def prepare(self, config: RunConfig) -> Prepared:
        """The model of the file."""
        return await asyncio.to_thread(self._read, config)

    def _read(self, config: RunConfig) -> Prepared:
        assert config.init is not None, "a run without torch starts from a file"
        file = read_init(config.init)
        known = file.description
        if known is None or _unlike(config, file):
            raise ConfigError(f"--init {config.init} was replaced while the server started; start it again")
        x0, _ = file.values(known.specs, None)
        return Prepared(
            model=known.model,
            specs=known.specs,
            classifier=known.classifier,
            x0=x0,
            init_digest=file.digest,
            **of_task(config),
        )

    async def evaluate(self, flat: Flat) -> Evaluation:
        """There are no data."""
        raise RunError("this server has neither data nor torch to evaluate a model with")

    async def conformal(self, flat: Flat, clients: Sequence[int]) -> ConformalRecord:
        """None, for the same reason."""
        return ConformalRecord(sets=())

    async def cka(self, updates: Sequence[Path], num_images: int, estimator: str) -> Similarity:
        """There are no data."""
        raise RunError("this server has neither data nor torch to compare models with")

    async def rest(self) -> None:
        """There is no process to end."""

    def close(self) -> None:
        """The same."""
