"""The data sets by name, for those who need not load one."""

from __future__ import annotations

from common import plugin
from common.errors import ConfigError
from common.installed.entry_points import EntryPoints

DATASETS = ("digits", "cifar10", "cifar100", "fashion-mnist", "imagefolder")


INSTALLED = EntryPoints("fedpvr.datasets", "data set")
"""Factories f(split) -> (images, labels) of other packages."""


def require_known(name: str) -> None:
    """Raises for a name that is neither built in nor module:factory nor of an installed package."""
    if name not in DATASETS and not plugin.is_plugin(name) and name not in INSTALLED:
        known = ", ".join([*DATASETS, *INSTALLED])
        raise ConfigError(f"unknown data set {name!r}; choose {known} or module:factory")
