"""The form of a JSON value is a type: read into it strictly, written from it.

A form is bool, int, float, str, None, an enumeration, tuple[X, ...], tuple[X, Y], dict[str, X], dict[int, X],
a dataclass, or several of these joined by |. Numbers are finite and fit into 64 bits; no form contains
itself, so what is read is as deep as its type. Keys that a dataclass does not have are passed over, because a
later release may have added them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from common.errors import StateError

FORMAT = 2
"""Grows when an older release would misread what this one writes. 1 is what did not say its format yet."""
REST = {"rest": True}
"""Metadata of the one field of a dataclass that takes the keys which no other field has."""
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "null"}
_LATER = "a later release has written it: use that one"
T = TypeVar("T")
_Reader = Callable[[Any], Any]


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
    """A value that does not have its form: where in it, what was expected, what is there, what to do."""

    def __init__(self, problem: str, *where: str, advice: str = "") -> None:
        super().__init__(f"{'.'.join(where)}: {problem}" if where else problem)
        self._problem = problem
        self._where = where
        self.advice = advice

    def inside(self, key: object) -> FormError:
        """The same, as seen from the object or list around it."""
        return FormError(self._problem, str(key), *self._where, advice=self.advice)


def read(form: type[T], value: object) -> T:
    """A JSON value as what its form says; raises a FormError if it has another."""
    reader: Callable[[object], T] = _reader(cast(Any, form))
    return reader(value)


def plain(value: object) -> Any:
    """What has a form, as JSON values. A number that is not finite is null: JSON has no other word for it.

    A field of a dataclass that is None is left out if that is its default.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        table: dict[str, object] = {}
        for each in fields(value):
            inner = getattr(value, each.name)
            if each.metadata.get("rest"):
                table |= plain(inner)
            elif inner is not None or each.default is not None:
                table[each.name] = plain(inner)
        return table
    return value.value if isinstance(value, Enum) else value


def text(value: object) -> str:
    """What has a form, as one line of JSON."""
    return json.dumps(plain(value), allow_nan=False)


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
    return _WORDS[form] if form in _WORDS else named(form)


@cache
def members(kind: type) -> dict[str, Any]:
    """The forms of a dataclass's fields."""
    return get_type_hints(kind, include_extras=True)


@cache
def _reader(form: Any) -> _Reader:
    """What reads values of a form, put together once."""
    origin, inner = get_origin(form), get_args(form)
    if origin is Annotated:
        return partial(_read_bounded, form, inner[1].value)
    if origin in (Union, UnionType):
        return partial(_read_union, form, NoneType in inner, [_reader(k) for k in inner if k is not NoneType])
    if origin is tuple and inner[1:] == (...,):
        return partial(_read_list, form, _reader(inner[0]))
    if origin is tuple:
        return partial(_read_row, form, [_reader(each) for each in inner])
    if origin is dict:
        return partial(_read_table, form, inner[0], _reader(inner[1]))
    if form in _WORDS:
        return partial(_read_scalar, form)
    if issubclass(form, Enum):
        return partial(_read_choice, form)
    return partial(_read_object, form, {name: _reader(each) for name, each in members(form).items()})


def _wrong(form: Any, value: object) -> FormError:
    shown = json.dumps(value, default=repr)
    return FormError(f"expected {described(form)}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")


def _read_scalar(form: type, value: Any) -> Any:
    # A bool is no number here, and a number that nothing can hold is none either.
    if type(value) is int and form in (int, float) and abs(value) < 1 << 63:
        return form(value)
    if type(value) is not form or form is int or (type(value) is float and not math.isfinite(value)):
        raise _wrong(form, value)
    return value


def _read_bounded(form: Any, least: int, value: Any) -> int:
    if type(value) is not int or not least <= value < 1 << 63:
        raise _wrong(form, value)
    return value


def _read_choice(form: type[Enum], value: Any) -> Enum:
    try:
        return form(value)
    except ValueError as error:
        raise _wrong(form, value) from error


def _read_union(form: Any, has_null: bool, readers: list[_Reader], value: Any) -> Any:
    if value is None and has_null:
        return None
    if len(readers) == 1:
        return readers[0](value)
    for reader in readers:
        try:
            return reader(value)
        except FormError:
            continue
    raise _wrong(form, value)


def _read_list(form: Any, reader: _Reader, value: Any) -> tuple[Any, ...]:
    return _read_row(form, [reader] * len(value) if type(value) is list else [], value)


def _read_row(form: Any, readers: list[_Reader], value: Any) -> tuple[Any, ...]:
    if type(value) is not list or len(value) != len(readers):
        raise _wrong(form, value)
    found: list[Any] = []
    try:
        for reader, inner in zip(readers, value, strict=True):
            found.append(reader(inner))
    except FormError as error:
        raise error.inside(len(found)) from error
    return tuple(found)


def _read_table(form: Any, keys: type, reader: _Reader, value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise _wrong(form, value)
    found: dict[Any, Any] = {}
    key = ""
    try:
        for key, inner in value.items():
            found[key if keys is str else _index(key)] = reader(inner)
    except FormError as error:
        raise error.inside(key) from error
    return found


def _index(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 19) or str(int(key)) != key:
        raise FormError("expected whole numbers as names")
    return int(key)


def _read_object(form: Any, readers: dict[str, _Reader], value: Any) -> Any:
    if issubclass(form, Record):
        value = _with_format(form, value)
    if type(value) is not dict:
        raise _wrong(form, value)
    found: dict[str, Any] = {}
    for each in fields(form):
        name = each.name
        if each.metadata.get("rest"):
            found[name] = readers[name]({k: v for k, v in value.items() if k not in readers})
        elif name in value:
            try:
                found[name] = readers[name](value[name])
            except FormError as error:
                raise error.inside(name) from error
        elif each.default is MISSING and each.default_factory is MISSING:
            raise FormError(f"expected {described(members(form)[name])}, got nothing", name)
    return form(**found)


def _with_format(form: type[Record], value: Any) -> Any:
    if not isinstance(value, dict) or "format" not in value:
        value = form.from_first(value)
        return {"format": 1} | value if isinstance(value, dict) else value
    if type(value["format"]) is int and value["format"] > FORMAT:
        raise FormError(f"expected {FORMAT} at most, got {value['format']}", "format", advice=_LATER)
    return value
