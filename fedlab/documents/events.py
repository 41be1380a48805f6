"""Prints docs/events.md: everything that a process tells of, with its fields, from the classes."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import common
import fedclient
import fedlab
import fedserver
import fedwire
from common.events import Event, Level
from common.records.base import described, members
from common.records.document import field_docstrings

PACKAGES = {
    fedserver: "A server",
    fedclient: "A client",
    fedlab: "The lab bench",
    fedwire: "The inspector",
    common: "Any process",
}
INTRODUCTION = """\
# Events

Written by `python -m fedlab.documents.events` (`make docs`) from the classes.

What happens in a process is an event with typed fields. `--log-format text` prints a line for people;
`--log-format json` prints a JSON object a line, with `time` (UTC), `level`, `event` (the name below), the
event's fields, and `text`, the line that people would read:

    fedserver run --num-clients 2 --log-format json
    fedclient run --name clinic-a --log-format json --quiet

Levels are `detail` (shown with `--verbose`), `notice`, and `warning` (shown even with `--quiet`). Later
releases may add events and fields: pass over those you do not know.

Every event may have these fields, and has them only where they say something:

"""
HEAD = "| field | value | meaning |\n|---|---|---|\n"


def document() -> str:
    """The whole document."""
    text = INTRODUCTION + HEAD + _rows(Event, [field.name for field in fields(Event)])
    for package, whose in PACKAGES.items():
        kinds = events_of(package)
        if kinds:
            text += f"\n## {whose}\n" + "".join(_section(kind) for kind in kinds)
    return text


def events_of(package: ModuleType) -> list[type[Event]]:
    """The events that a package declares, in the order of their names."""
    for name in _modules_with_events(package):
        importlib.import_module(name)
    inside = package.__name__ + "."
    return sorted(
        (kind for kind in _below(Event) if kind.__module__.startswith(inside)), key=lambda kind: kind.__name__
    )


def _modules_with_events(package: ModuleType) -> Iterator[str]:
    """Those that declare one; nothing else is imported, least of all torch."""
    folder = Path(package.__path__[0])
    for file in sorted(folder.rglob("*.py")):
        if re.search(r"^class \w+\((Event|Trouble)\):", file.read_text(), re.MULTILINE):
            yield ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")


def _below(kind: type[Event]) -> Iterator[type[Event]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _section(kind: type[Event]) -> str:
    meaning = " ".join((inspect.getdoc(kind) or "").split())
    return f"\n### {kind.kind_of()}\n\n*{_level(kind)}.* {meaning}\n{_fields(kind)}"


def _level(kind: type[Event]) -> str:
    declared = inspect.getattr_static(kind, "level")
    # A few events are more or less important by what they say.
    level = declared.name.lower() if isinstance(declared, Level) else "notice or warning"
    return f"{level}, red on a terminal" if kind.alarming else level


def _fields(kind: type[Event]) -> str:
    """What an event has besides the fields of every event: a line where their names say all, else a table."""
    common_fields = {field.name for field in fields(Event)}
    own = [field.name for field in fields(kind) if field.name not in common_fields]
    if not own:
        return ""
    if not any(name in field_docstrings(kind) for name in own):
        return "\nFields: " + ", ".join(f"`{name}` ({_form(kind, name)})" for name in own) + ".\n"
    return f"\n{HEAD}{_rows(kind, own)}"


def _rows(kind: type[Event], names: Iterable[str]) -> str:
    meanings = field_docstrings(kind)
    cells = ((name, _form(kind, name), " ".join(meanings.get(name, "").split())) for name in names)
    return "".join(f"| `{name}` | {form} | {meaning} |\n" for name, form, meaning in cells)


def _form(kind: type, name: str) -> str:
    """What a JSON log has for a field; whatever is no number or list is text there."""
    return described(members(kind)[name], named=lambda _: "text")


if __name__ == "__main__":
    print(document(), end="")
