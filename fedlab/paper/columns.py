"""The columns of the paper's tables: data set, model, heterogeneity."""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.errors import ConfigError
from fedserver import presets

_WORDS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "vgg11": "VGG-11",
    "resnet8": "ResNet-8",
    "resnet8-bn": "ResNet-8 with BatchNorm",
}


@dataclass(frozen=True)
class Column:
    """A column as the paper has it; a scale says what stands for it."""

    dataset: str
    model: str
    alpha: float

    @property
    def name(self) -> str:
        """What `--column` and `--preset` take."""
        return f"{self.dataset}-{self.model}-a{self.alpha}"

    @property
    def heading(self) -> str:
        """Its heading in a table."""
        return f"{self.short} a={self.alpha:g}"

    @property
    def short(self) -> str:
        """Data set and model alone."""
        return f"{_WORDS[self.dataset]} {_WORDS[self.model]}"

    @property
    def shown_dataset(self) -> str:
        """The data set in the paper's spelling."""
        return _WORDS[self.dataset]

    def at(self, alpha: float) -> Column:
        """The same with other shards."""
        return replace(self, alpha=alpha)


def column(name: str) -> Column:
    """The column of a name."""
    if name not in COLUMNS:
        raise ConfigError(f"--column must be one of {', '.join(COLUMNS)}, got {name!r}")
    return COLUMNS[name]


def _of(preset: str) -> Column:
    dataset, _, rest = preset.partition("-")
    model, _, alpha = rest.rpartition("-a")
    return Column(dataset, model, float(alpha))


COLUMNS = {name: _of(name) for name in presets.NAMES}
"""All of them by name: the paper's eight, and ResNet-8 with BatchNorm."""
PRINTED = tuple(name for name in presets.NAMES if "-bn-" not in name)
"""Those of the paper's tables 2 and 3."""
