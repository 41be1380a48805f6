"""JSON files on disk: read whole or line by line, and held against the form that their readers rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import StateError


def read(path: Path) -> Any:
    """The document in a file."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error


def read_lines(path: Path) -> list[Any]:
    """One document a line; a last line without its end was cut off or is being written, and is left out."""
    try:
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error


def has_form(value: object, form: Any) -> bool:
    """Whether a JSON value is what a form describes.

    A form is a type, None, a tuple of alternatives, [form] for a list of any length, [form, form] for one of
    this length, {"key": form} for an object that has these keys, or {str: form} for one with any keys. With
    `...` among the alternatives a key may be missing.
    """
    match form:
        case tuple():
            return any(has_form(value, each) for each in form)
        case list():
            forms = form * len(value) if isinstance(value, list) and len(form) == 1 else form
            return isinstance(value, list) and len(value) == len(forms) and all(map(has_form, value, forms))
        case dict() if str in form:
            return isinstance(value, dict) and all(has_form(each, form[str]) for each in value.values())
        case dict():
            return isinstance(value, dict) and all(has_form(value.get(key, ...), form[key]) for key in form)
    if form is float and type(value) is float:
        return True
    if form in (int, float):  # A bool is no number, and a number that nothing can hold is none either.
        return type(value) is int and abs(value) < 1 << 63
    return value is form if form in (None, ...) else type(value) is form
