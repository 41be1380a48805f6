"""Every plug-in of an installed package, and whether it can be used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from common import plugin
from common.algorithms import ALGORITHMS
from common.data import names as data_names
from common.errors import ConfigError
from common.installed.entry_points import EntryPoints
from common.metrics import choice
from common.models import names as model_names
from common.wire.codec_choice import CODECS


@dataclass(frozen=True, kw_only=True)
class PluginRow:
    """One entry point."""

    kind: str
    name: str
    package: str
    object: str
    state: str
    """`ok`, or what is wrong with it."""


def plugins() -> list[PluginRow]:
    """All of them; each is loaded once, to see whether that works."""
    return [
        PluginRow(
            kind=points.kind,
            name=found.name,
            package=found.package,
            object=found.value,
            state="a built-in has this name" if found.name in built_in else _state(load, found.name),
        )
        for points, built_in, load in _groups()
        for found in points.found()
    ]


def _groups() -> Iterator[tuple[EntryPoints, Collection[str], Callable[[str], object]]]:
    """The groups with what is built in, and what loads one by its name."""
    yield ALGORITHMS.installed, ALGORITHMS.built_in, ALGORITHMS.__getitem__
    yield CODECS.installed, CODECS.built_in, CODECS.__getitem__
    for points, built_in in (
        (choice.INSTALLED, choice.BUILT_IN),
        (data_names.INSTALLED, data_names.DATASETS),
        (model_names.INSTALLED, model_names.BUILT_IN),
    ):
        yield points, built_in, partial(plugin.load, installed=points)


def _state(load: Callable[[str], object], name: str) -> str:
    try:
        load(name)
    except ConfigError as error:
        return str(error)
    return "ok"
