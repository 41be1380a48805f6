"""Damaged files of lines: set aside for people, and gone on with by what is still good in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from common.atomic import replacing
from common.errors import LaterReleaseError
from common.events import Emit
from common.records import form
from common.records.base import FormError
from common.records.rounds import RoundRecord
from fedserver.events.run import FileSetAside


def salvage(path: Path, round_of: Callable[[bytes], int | None], emit: Emit) -> None:
    """Puts a file aside if a line in it is damaged, and writes the good ones into its place.

    A line is good if its round is known and later than that of the good line before. A last line without its
    end was cut off by a crash, which is no damage.
    """
    good, bad = _lines(path, round_of) if path.exists() else ([], 0)
    if not bad:
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    with aside.open("rb") as source, replacing(path) as scratch, scratch.open("wb") as target:
        for offset, size in good:
            source.seek(offset)
            target.write(source.read(size))
    emit(FileSetAside(path=str(path), aside=aside.name, damaged=bad, good=len(good)))


def _lines(path: Path, round_of: Callable[[bytes], int | None]) -> tuple[list[tuple[int, int]], int]:
    """Where the good lines are and how long; and how many are damaged."""
    good, bad, last, offset = [], 0, 0, 0
    with path.open("rb") as file:
        for line in file:
            r = round_of(line)
            if r is not None and r > last and line.endswith(b"\n"):
                good.append((offset, len(line)))
                last = r
            elif line.endswith(b"\n"):
                bad += 1
            offset += len(line)
    return good, bad


def round_of_record(line: bytes) -> int | None:
    """The round of a line of rounds.jsonl; None if it is damaged. Raises for one of a later release."""
    try:
        return form.read(RoundRecord, json.loads(line)).round
    except FormError as error:
        if error.advice:
            raise LaterReleaseError(f"rounds.jsonl: {error}; {error.advice}") from error
        return None
    except (ValueError, RecursionError):
        return None
