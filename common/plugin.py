"""Factories of users, named `module:factory` and imported from the current directory.

A server names the model and the data set of a run, and clients import what it names. A module is therefore
looked for in the current directory and nowhere else: a server can choose among what the client's owner put
there, but cannot reach into installed packages or the standard library.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import ConfigError


def is_plugin(name: str) -> bool:
    """Whether a model or data set name is `module:factory`."""
    return ":" in name


def load(name: str) -> Callable[..., Any]:
    """The callable that `module:factory` names."""
    module_name, _, factory_name = name.partition(":")
    here = str(Path.cwd())
    parts = module_name.split(".")
    if not all(part.isidentifier() for part in [*parts, factory_name]):
        raise ConfigError(f"expected module:factory, got {name!r}")
    if importlib.machinery.PathFinder.find_spec(parts[0], [here]) is None:
        raise ConfigError(f"{name}: no module {parts[0]!r} in the current directory {here}")
    module = _import(module_name, here, name)
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise ConfigError(f"{name}: module {module_name!r} has no callable {factory_name!r}")
    found: Callable[..., Any] = factory
    return found


def _import(module_name: str, here: str, name: str) -> Any:
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"{name}: importing {module_name!r} failed: {error!r}") from error
    finally:
        sys.path.remove(here)
    # At the end it shadows nothing; a factory may import its neighbours when it is called.
    if here not in sys.path:
        sys.path.append(here)
    origin = getattr(module, "__file__", None)
    if origin is None or not Path(origin).is_relative_to(here):
        raise ConfigError(f"{name}: {module_name!r} is another module already, {origin}; rename yours")
    return module
