"""The data sets by name, for those who need not load one."""

from __future__ import annotations

from common import plugin
from common.errors import ConfigError

DATASETS = ("digits", "cifar10", "cifar100", "fashion-mnist", "imagefolder")


def require_known(name: str) -> None:
    """Raises for a name that is neither built in nor module:factory."""
    if name not in DATASETS and not plugin.is_plugin(name):
        raise ConfigError(f"unknown data set {name!r}; choose {', '.join(DATASETS)} or module:factory")
