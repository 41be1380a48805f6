"""Which versions are here, without importing anything."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGE = "fedpvr"
ALONGSIDE = ("grpcio", "protobuf", "torch")
"""What a report of a problem should name."""


def own_version() -> str:
    """As the installed package says, which has it from pyproject.toml, its only place."""
    return _version(PACKAGE) or "of a copy that is not installed"


def versions() -> str:
    """One line: this package, Python, and the libraries that matter most."""
    found = {name: _version(name) for name in ALONGSIDE}
    libraries = [f"{name} {number}" if number else f"no {name}" for name, number in found.items()]
    return f"{PACKAGE} {own_version()} (Python {platform.python_version()}, {', '.join(libraries)})"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
