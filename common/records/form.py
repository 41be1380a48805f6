"""The form of a JSON value is a type: read into it strictly, written from it.

A form is bool, int, float, str, None, an enumeration, tuple[X, ...], tuple[X, Y], dict[str, X], dict[int, X],
a dataclass, or several of these joined by |. Numbers are finite and fit into 64 bits; no form contains
itself, so what is read is as deep as its type. Keys that a dataclass does not have are passed over, because a
later release may have added them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from common.records.base import FORMAT, WORDS, FormError, Record, described, members

_LATER = "a later release has written it: use that one"
T = TypeVar("T")
_Reader = Callable[[Any], Any]


def read(form: type[T], value: object) -> T:
    """A JSON value as what its form says; raises a FormError if it has another."""
    reader: Callable[[object], T] = _reader(cast(Any, form))
    return reader(value)


def plain(value: object) -> Any:
    """What has a form, as values that `json` writes. A number that is not finite is null, as JSON has none.

    A field of a dataclass that is None is left out if that is its default.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if is_dataclass(value):
        table, forms = dict[str, object](), members(cast(type, type(value)))
        for each in fields(value):
            inner = getattr(value, each.name)
            if each.metadata.get("rest"):
                table |= plain(inner)
            elif inner is not None or each.default is not None:
                table[each.name] = inner if _is_json(forms[each.name]) else plain(inner)
        return table
    return value.value if isinstance(value, Enum) else value


@cache
def _is_json(form: Any) -> bool:
    """Whether values of a form can be written as they are, without a look at each of many."""
    origin, inner = get_origin(form), get_args(form)
    if origin is tuple:
        return all(each is ... or _is_json(each) for each in inner)
    if origin is dict:
        return inner[0] is str and _is_json(inner[1])
    return origin is Annotated or form in (bool, int, str)


def text(value: object) -> str:
    """What has a form, as one line of JSON."""
    return json.dumps(plain(value), allow_nan=False)


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
    if form in WORDS:
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
