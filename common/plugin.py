"""Factories of users, named `module:factory` and taken from the current directory.

A module is a file `module.py` or a package `module/__init__.py` in the current directory, and nothing else:
where it lies is settled before a line of it runs, so that a name cannot reach into installed packages, the
standard library or folders that happen to be there. A factory is a function or class that the module itself
defines. Which names a server may give to a client is for the client's site to say (`fedclient/site.py`).
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from common.errors import ConfigError
from common.installed.entry_points import EntryPoints

_IMPORTING = threading.RLock()
"""Clients of a simulation load the same module in several threads at once."""
_LENT: dict[str, Callable[..., Any]] = {}
"""What a program has lent to runs in its own process, by name; a peer's name is none of these."""
_NUMBERS = itertools.count(1)


def is_plugin(name: str) -> bool:
    """Whether a model or data set name is meant as `module:factory`."""
    return ":" in name


def is_well_formed(name: str) -> bool:
    """Whether a name is `module:factory` in plain words, the module's perhaps with dots between them."""
    module, _, factory = name.partition(":")
    return all(part.isidentifier() for part in [*module.split("."), factory])


def require_well_formed(name: str) -> None:
    """Raises for anything else."""
    if not is_well_formed(name):
        raise ConfigError(f"expected module:factory, got {name!r}")


@contextmanager
def lent(word: str, factory: Callable[..., Any]) -> Iterator[str]:
    """Gives an object of this program a name, `given:WORD_NUMBER`, for as long as the block runs."""
    name = f"given:{word}_{next(_NUMBERS)}"
    _LENT[name] = factory
    try:
        yield name
    finally:
        del _LENT[name]


def load(name: str, installed: EntryPoints | None = None) -> Callable[..., Any]:
    """The function or class that `module:factory` names, or a name among those of installed packages."""
    if name in _LENT:
        return _LENT[name]
    if installed is not None and not is_plugin(name):
        found = installed.load(name)
        if not callable(found):
            raise installed.refuse(name, f"expected a function or a class, got {found!r}")
        return found
    require_well_formed(name)
    module_name, _, factory_name = name.partition(":")
    here = Path.cwd()
    files = _located(name, module_name, here)
    with _IMPORTING, _importing_from(here):
        for dotted, file in files:
            module = sys.modules.get(dotted) or _imported(name, dotted, file)
    factory = vars(module).get(factory_name)
    if (inspect.isfunction(factory) or inspect.isclass(factory)) and factory.__module__ == module_name:
        return factory
    raise ConfigError(f"{name}: {module_name!r} defines no function or class {factory_name!r} of its own")


def _located(name: str, module_name: str, here: Path) -> list[tuple[str, Path]]:
    """The module and the packages around it with their files, outermost first; nothing is imported."""
    found: list[tuple[str, Path]] = []
    folder = here
    *packages, last = module_name.split(".")
    for part in [*packages, last]:
        choices = [folder / part / "__init__.py"]
        if len(found) == len(packages):
            choices.append(folder / f"{part}.py")
        file = next((path for path in choices if path.is_file()), None)
        dotted = ".".join([*(outer for outer, _ in found[-1:]), part])
        if file is None:
            looked_for = " or ".join(str(path.relative_to(here)) for path in reversed(choices))
            raise ConfigError(
                f"{name}: no module {dotted!r} in the current directory {here}, no {looked_for}"
            )
        _require_free(name, dotted, file)
        found.append((dotted, file))
        folder = folder / part
    return found


def _require_free(name: str, dotted: str, file: Path) -> None:
    """Raises where a module of this name is another one."""
    loaded = sys.modules.get(dotted)
    if loaded is None:
        if dotted in sys.stdlib_module_names:
            raise ConfigError(f"{name}: {dotted!r} is a module of Python's own; rename yours")
        return
    origin = getattr(loaded, "__file__", None)
    if origin is None or Path(origin).absolute() != file:
        if dotted == __package__:
            raise ConfigError(f"{name}: {dotted!r} is a package of FedPVR's own; rename your {file.name}")
        raise ConfigError(f"{name}: {dotted!r} is another module already, {origin}; rename yours")


def _imported(name: str, dotted: str, file: Path) -> ModuleType:
    """Runs exactly this file as a module of this name."""
    inside = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(dotted, file, submodule_search_locations=inside)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[dotted] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[dotted]
        raise ConfigError(f"{name}: importing {dotted!r} failed: {error!r}") from error
    outer, _, last = dotted.rpartition(".")
    if outer:
        setattr(sys.modules[outer], last, module)
    return module


@contextmanager
def _importing_from(here: Path) -> Iterator[None]:
    """Lets a module import its neighbours, also later, when its factory is called."""
    sys.path.insert(0, str(here))
    try:
        yield
    finally:
        sys.path.remove(str(here))
    # At the end it shadows nothing.
    if str(here) not in sys.path:
        sys.path.append(str(here))
