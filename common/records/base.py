"""What forms are made of: bounds, records with a format, the words for a form, the error of another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from common.errors import StateError

FORMAT = 2
"""Grows when an older release would misread what this one writes. 1 is what did not say its format yet."""
REST = {"rest": True}
"""Metadata of the one field of a dataclass that takes the keys which no other field has."""
WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "null"}


@dataclass(frozen=True)
class AtLeast:
    """The smallest value that a whole number may have."""

    value: int


Count = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A document, or a line of one, that says which format it has."""

    format: Positive = FORMAT
    """Version of the form, one number for all records; missing in the first."""

    @classmethod
    def from_first(cls, value: Any) -> Any:
        """A JSON value of format 1 in today's form, but for its format. Records say what has changed."""
        return value


class FormError(StateError):
    """A value that does not have its form: where in it, what was expected, what is there.

    `advice` says what to do about one of a later release, and is empty for all others.
    """

    def __init__(self, problem: str, *where: str, advice: str = "") -> None:
        super().__init__(f"{'.'.join(where)}: {problem}" if where else problem)
        self._problem = problem
        self._where = where
        self.advice = advice

    def inside(self, key: object) -> FormError:
        """The same, as seen from the object or list around it."""
        return FormError(self._problem, str(key), *self._where, advice=self.advice)


def described(form: Any, named: Callable[[type], str] = lambda kind: "{...}") -> str:
    """A form in words, lists and objects as JSON writes them; `named` says what a dataclass is called."""
    origin, inner = get_origin(form), get_args(form)
    if origin is Annotated:
        return f"{described(inner[0], named)} from {inner[1].value}"
    if origin in (Union, UnionType):
        return " or ".join(described(each, named) for each in inner)
    if origin is tuple:
        return f"[{', '.join('...' if each is ... else described(each, named) for each in inner)}]"
    if origin is dict:
        return f"{{...: {described(inner[1], named)}}}"
    if isinstance(form, type) and issubclass(form, Enum):
        return f"one of {', '.join(str(each.value) for each in form)}"
    return WORDS[form] if form in WORDS else named(form)


@cache
def members(kind: type) -> dict[str, Any]:
    """The forms of a dataclass's fields."""
    return get_type_hints(kind, include_extras=True)
