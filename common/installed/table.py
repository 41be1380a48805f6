"""Things by name: those that are built in, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from common.errors import ConfigError
from common.installed.entry_points import EntryPoints

T = TypeVar("T")


class Table(Mapping[str, T]):
    """What is built in is there at once and cannot be replaced; the rest is looked for when it is asked for.

    `checked` turns a loaded object into what the table has, or raises ValueError with what was expected.
    """

    def __init__(
        self, group: str, kind: str, built_in: Mapping[str, T], checked: Callable[[str, object], T]
    ) -> None:
        self.built_in = dict(built_in)
        self._installed = EntryPoints(group, kind)
        self._checked = checked
        self._ready: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._ready:
            if name not in self._installed:
                raise KeyError(name)
            try:
                self._ready[name] = self._checked(name, self._installed.load(name))
            except ValueError as error:
                raise self._installed.refuse(name, str(error)) from error
        return self._ready[name]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._installed

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from (name for name in self._installed if name not in self.built_in)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __bool__(self) -> bool:
        return True

    @property
    def ready(self) -> dict[str, T]:
        """What a peer may name: the built-in ones, and those that were loaded for other reasons."""
        return self.built_in | self._ready

    @property
    def installed(self) -> EntryPoints:
        """Those of installed packages."""
        return self._installed

    def load_all(self) -> None:
        """Loads all that can be, for whoever reads what others have written; what is broken is left out."""
        for name in self:
            try:
                self[name]
            except ConfigError:
                continue
