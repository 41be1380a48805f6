"""What a run without data at the server has to know of the data that its clients bring."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from common import plugin
from common.data.datasets import IMAGE_DTYPES, MAX_CLASSES
from common.errors import ConfigError
from common.metrics.choice import BUILT_IN, INSTALLED, OF_A_TEST_SET, require_known
from common.metrics.message import MAX_CLASSES as MAX_EVALUATED
from fedserver.settings import Section, flag

NO_DATA = "none"
"""In place of a data set's name."""
MAX_VALUES = 1 << 24
"""Of one example."""
DATA = Section.DATA


@dataclass(frozen=True, kw_only=True)
class Task:
    """The settings that take the place of a data set; all of them may stand in a file, see --task."""

    input_shape: str | None = DATA.setting(
        None,
        "Without --dataset: the shape of one example, for example 3x32x32. The server then has no data: "
        "every client brings its own.",
        metavar="CxHxW",
        if_unset="as the data set has it",
    )
    input_dtype: str = DATA.setting(
        "uint8", "With --input-shape: what examples consist of.", choices=IMAGE_DTYPES
    )
    classes: tuple[str, ...] = DATA.setting(
        (),
        "With --input-shape: the name of a class; repeatable, in the order of labels.",
        metavar="NAME",
        if_unset="those of the data set",
    )
    mean: tuple[float, ...] = DATA.setting(
        (),
        "With --input-shape: mean of a channel of uint8 examples scaled to 0..1; repeatable.",
        if_unset="0.5",
    )
    std: tuple[float, ...] = DATA.setting(
        (), "With --input-shape: standard deviation of the same; repeatable.", if_unset="0.25"
    )

    loss: str | None = DATA.setting(
        None,
        "With --input-shape: module:function(scores, labels) -> mean loss, in the current directory of each "
        "client, which must allow it.",
        metavar="MODULE:FUNCTION",
        if_unset="cross-entropy",
    )
    transform: str | None = DATA.setting(
        None,
        "With --input-shape: module:function(examples) -> examples, found in the same way; applied once to "
        "all examples of a client, as an array, before training.",
        metavar="MODULE:FUNCTION",
        if_unset="none",
    )
    metrics: tuple[str, ...] = DATA.setting(
        (),
        "With --input-shape: what to compute from the counts of the sites: accuracy, balanced_accuracy, f1, "
        "auroc, loss, module:function(confusion) -> number in the server's current directory, or one that an "
        "installed package has; repeatable.",
        metavar="NAME",
        if_unset="all but functions",
    )
    best: str | None = Section.RUN.setting(
        None,
        "Keep the x with the best value of this metric in best.safetensors, beside the last one: accuracy, "
        "balanced_accuracy or loss; with --task any of --metrics, from the counts of all sites.",
        metavar="METRIC",
        if_unset="keep the last x only",
    )

    @property
    def chosen_metrics(self) -> tuple[str, ...]:
        """By name."""
        return self.metrics or BUILT_IN

    @property
    def judge(self) -> str:
        """The metric that says which x is best and which site is worst."""
        return self.best or self.chosen_metrics[0]

    @property
    def sites_evaluate(self) -> bool:
        """Whether clients are asked to evaluate x; of very many classes counts would be too long."""
        return self.has_task and len(self.classes) <= MAX_EVALUATED

    @property
    def has_task(self) -> bool:
        """Whether clients bring all data, and the server has none."""
        return self.input_shape is not None

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(map(int, (self.input_shape or "1").split("x")))

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation by channel, or for all channels."""
        return tuple(map(float, self.mean)) or (0.5,), tuple(map(float, self.std)) or (0.25,)

    def check_task(self, dataset: str, **in_the_way: object) -> None:
        """Raises unless the task is whole; `in_the_way` has the settings that need data at the server."""
        self._check_best()
        if not self.has_task:
            for name in ("classes", "mean", "std", "loss", "transform", "metrics"):
                if getattr(self, name):
                    raise ConfigError(f"{flag(name)} describes a task; give --input-shape too")
            if dataset == NO_DATA:
                raise ConfigError("--dataset none needs a description of the data: give --task FILE.toml")
            return
        if dataset != NO_DATA:
            raise ConfigError(
                f"--input-shape and --dataset {dataset} exclude each other: a task has no data at the server"
            )
        for name, value in in_the_way.items():
            if value:
                raise ConfigError(
                    f"{flag(name)} needs data at the server, which a task has not; leave it out"
                )
        self.check_shape()
        for plug_in in filter(None, (self.loss, self.transform)):
            plugin.require_well_formed(plug_in)
        if not 2 <= len(self.classes) <= MAX_CLASSES or len(set(self.classes)) < len(self.classes):
            raise ConfigError(
                f"--classes must name 2 to {MAX_CLASSES} different classes, got {len(self.classes)}"
            )
        mean, std = self.normalisation
        for name, values in (("--mean", mean), ("--std", std)):
            if len(values) not in (1, self.example_shape[0]):
                raise ConfigError(
                    f"{name} must have one number, or one for each of {self.example_shape[0]} channels, "
                    f"got {len(values)}"
                )
        if not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            raise ConfigError("--mean must be finite, and --std finite and positive")

    def _check_best(self) -> None:
        for name in self.metrics:
            if plugin.is_plugin(name):
                plugin.require_well_formed(name)
            elif name not in BUILT_IN and name not in INSTALLED:
                require_known(name, [*BUILT_IN, *INSTALLED], "--metrics")
        if self.best is not None:
            require_known(self.best, self.chosen_metrics if self.has_task else OF_A_TEST_SET, "--best")
            if self.has_task and not self.sites_evaluate:
                raise ConfigError(
                    f"--best needs evaluation at the sites, for at most {MAX_EVALUATED} classes"
                )

    def check_shape(self) -> None:
        """Raises for a shape that is none."""
        text = self.input_shape or ""
        if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8}){0,7}", text):
            raise ConfigError(f"--input-shape must be numbers with x between them, got {text!r}")
        if math.prod(self.example_shape) > MAX_VALUES:
            raise ConfigError(f"--input-shape must have at most {MAX_VALUES} values, got {text}")
