"""Experiments with fixed settings that come along: sweeps by name, for `fedlab reproduce`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "experiments" / "protocols"
PROTOCOLS = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
"""Files by name."""


@dataclass(frozen=True)
class Protocol:
    """What one of them is about."""

    name: str
    title: str
    question: str


def named(wanted: str, plain: Callable[[str], str]) -> str | None:
    """The one that somebody means, if there is one; `plain` leaves out what does not matter in a name."""
    return next((name for name in PROTOCOLS if plain(name) == wanted), None)


def described() -> list[Protocol]:
    """All of them."""
    tables = {name: tomllib.loads(path.read_text()) for name, path in PROTOCOLS.items()}
    return [Protocol(name, table["title"], table["question"]) for name, table in tables.items()]
