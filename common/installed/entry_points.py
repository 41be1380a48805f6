"""Entry points of one group: which names there are, and the objects that they stand for."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ConfigError, printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


def is_entry_name(name: str) -> bool:
    """Whether an entry point of ours can have this name."""
    return bool(_NAME.fullmatch(name))


@dataclass(frozen=True)
class Installed:
    """An entry point of an installed package."""

    name: str
    value: str
    """What it stands for, `package.module:object`."""
    package: str
    """Name and version of the package."""


class EntryPoints:
    """Those of one group, `kind` in words. They are read when somebody asks, and loaded one by one."""

    def __init__(self, group: str, kind: str) -> None:
        self.group = group
        self.kind = kind
        self.loaded: dict[str, object] = {}
        """What has been loaded so far, by name. A peer may name these and what is built in."""

    def found(self) -> list[Installed]:
        """All of the group, by name; several packages may claim one name."""
        return [found for found, _ in _read(self.group, tuple(sys.path), str(Path.cwd()))]

    def __contains__(self, name: object) -> bool:
        # What can be no name of an entry point, module:factory say, is not looked for in every package.
        return (
            isinstance(name, str)
            and is_entry_name(name)
            and any(found.name == name for found in self.found())
        )

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(found.name for found in self.found()))

    def load(self, name: str) -> object:
        """The object of a name; raises unless one package has it, and it can be imported."""
        if name in self.loaded:
            return self.loaded[name]
        points = _read(self.group, tuple(sys.path), str(Path.cwd()))
        matching = [(found, point) for found, point in points if found.name == name]
        if not matching:
            known = ", ".join(self) or "there are none"
            raise ConfigError(f"no {self.kind} {name!r} is installed here; of group {self.group}: {known}")
        (found, point), *others = matching
        if others:
            packages = " and ".join(each.package for each, _ in matching)
            raise ConfigError(f"{self.kind} {name} is in {packages}; uninstall all but one")
        try:
            self.loaded[name] = point.load()
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name} of {found.package}: loading {found.value} failed: {error!r}"
            ) from error
        return self.loaded[name]

    def refuse(self, name: str, problem: str) -> ConfigError:
        """The error of an object that is loaded and is not what it should be; it is loaded no more."""
        self.loaded.pop(name, None)
        package = next((found.package for found in self.found() if found.name == name), "a package")
        return ConfigError(f"{self.kind} {name} of {package}: {problem}")


@lru_cache(maxsize=16)
def _read(group: str, path: tuple[str, ...], here: str) -> list[tuple[Installed, EntryPoint]]:
    """Entry points with legal names, in the order of names.

    Not those of the current directory, which may be on Python's path: nobody has installed what lies there,
    and it has a rule of its own, `common.plugin`.
    """
    from importlib.metadata import distributions

    places = [place for place in path if place not in ("", here)]
    found: dict[tuple[str, str], tuple[Installed, EntryPoint]] = {}
    for package in distributions(path=places):
        for point in package.entry_points.select(group=group):
            if is_entry_name(point.name):
                name = printable(f"{package.name} {package.version}", 80)
                # The first on the path is the one that is imported.
                found.setdefault(
                    (point.name, package.name), (Installed(point.name, point.value, name), point)
                )
    return [found[key] for key in sorted(found)]
