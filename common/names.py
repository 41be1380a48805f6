"""Names of clients and of classes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from common.errors import JoinError

_DIGITS = frozenset("0123456789")
_MAX_DIGITS = 18
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


def is_name(name: str) -> bool:
    """Whether a client's name can be shown in a line and used as a file name."""
    return bool(_NAME.fullmatch(name))


def require_name(name: str) -> None:
    """Raises for anything else."""
    if not is_name(name):
        raise JoinError(
            f"a client name has 1 to 64 letters, digits, '_', '-' or, not first, '.', got {name!r}"
        )


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key that puts client-10 behind client-2 and keeps client-1 and client-01 apart."""
    key = []
    for part in re.split(r"([0-9]+)", name):
        digits = part.lstrip("0")
        # Numbers without leading zeros compare by length first, however long they are.
        key.append((len(digits), digits) if part[:1] in _DIGITS else (-1, part))
    return key, name


def class_number(name: str, class_names: Sequence[str]) -> int | None:
    """The label of a class given by its name or its number; None if there is no such class."""
    if name in class_names:
        return class_names.index(name)
    is_number = name.isascii() and name.isdecimal() and len(name) <= _MAX_DIGITS
    return int(name) if is_number and int(name) < len(class_names) else None
