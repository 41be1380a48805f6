"""What the owner of a client allows a server to name: code of the current directory, and of packages."""

from __future__ import annotations

from collections.abc import Iterable

from common import plugin
from common.algorithms import ALGORITHMS
from common.data import names as data_names
from common.errors import ConfigError
from common.models import names as model_names
from common.wire.codec_choice import CODECS

_BY_NAME = (ALGORITHMS.installed, CODECS.installed, model_names.INSTALLED, data_names.INSTALLED)


def require_allowable(name: str) -> None:
    """Raises for a name that is neither module:factory nor one that an installed package gives."""
    if plugin.is_plugin(name):
        plugin.require_well_formed(name)
    elif not any(name in points for points in _BY_NAME):
        raise ConfigError(f"expected module:factory, got {name!r}, which no installed package has either")


def load_allowed(names: Iterable[str]) -> None:
    """Loads the algorithms and codecs among these, before a server can name them; the rest in use."""
    for name in sorted(names):
        for table in (ALGORITHMS, CODECS):
            if name in table.installed:
                table[name]
