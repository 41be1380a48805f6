"""What a server in another process tells, as events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from common.events import Event


@dataclass(frozen=True, kw_only=True)
class Heard(Event):
    """An event of a server; `kind` and `values()` are what it was told with."""

    told: str
    """Its kind."""
    said: str
    """The line for people."""
    more: Mapping[str, object] = field(default_factory=dict)
    """The fields that this kind of event has besides those of all."""

    @property
    def kind(self) -> str:
        return self.told

    def text(self) -> str:
        return self.said

    def values(self) -> dict[str, object]:
        common = {each.name: getattr(self, each.name) for each in fields(Event)}
        return {name: value for name, value in common.items() if value} | dict(self.more)


def heard(line: str) -> Heard | None:
    """The event of a line of a JSON log; None for a line that is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("event"), str):
        return None
    common = {each.name: found.pop(each.name) for each in fields(Event) if each.name in found}
    kind, said = found.pop("event"), str(found.pop("text", ""))
    more = {name: value for name, value in found.items() if name not in ("time", "level")}
    return Heard(told=kind, said=said, more=more, **common)
