"""JSON on disk: documents that are replaced whole, and files of one document a line that only grow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from common.atomic import USUAL, replacing
from common.errors import LaterReleaseError, StateError
from common.records import form
from common.records.base import FormError

T = TypeVar("T")
DAMAGED = "it is damaged or of another kind: put a copy of it back, or use another directory"
"""What to do about a file that does not have its form, where nothing better is known."""


def read(path: Path, kind: type[T], advice: str = DAMAGED) -> T:
    """The document in a file; raises a StateError that says what is wrong with it."""
    try:
        return parsed(path.read_bytes(), kind, str(path), advice)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error


def read_lines(path: Path, kind: type[T], advice: str = DAMAGED) -> Iterator[T]:
    """One document a line; a last line without its end was cut off or is being written, and is left out."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield parsed(line, kind, f"{path}, line {number}", advice)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error


def parsed(data: bytes, kind: type[T], where: str, advice: str = DAMAGED) -> T:
    """The document in some bytes; `where` they are from is for the error."""
    try:
        return form.read(kind, json.loads(data.decode()))
    except FormError as error:
        if error.advice:
            raise LaterReleaseError(f"{where}: {error}; {error.advice}") from error
        raise StateError(f"{where}: {error}; {advice}") from error
    except (ValueError, RecursionError) as error:
        raise StateError(f"{where}: expected JSON, got something else ({error}); {advice}") from error


def write(path: Path, value: object, mode: int = USUAL) -> None:
    """Replaces `path` by a document."""
    with replacing(path, mode) as scratch:
        scratch.write_text(json.dumps(form.plain(value), indent=2, allow_nan=False) + "\n")


def write_lines(path: Path, values: Iterable[object]) -> None:
    """Replaces `path` by one document a line."""
    with replacing(path) as scratch, scratch.open("w") as file:
        file.writelines(form.text(value) + "\n" for value in values)


def append(path: Path, value: object, *, synced: bool = True) -> None:
    """Adds a line to a file, and has it on disk before it returns unless it is not to be `synced`."""
    with path.open("a") as file:
        file.write(form.text(value) + "\n")
        file.flush()
        if synced:
            os.fsync(file.fileno())
