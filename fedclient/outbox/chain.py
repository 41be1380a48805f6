"""The log of what leaves as a chain: every entry has the hash of the one before. Pure.

Whoever edits an entry breaks its hash, or the next one's `previous`; a gap or a wrong order shows in the
numbers; what is missing at the end shows in the head, which a site with a key signs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from common.records import form
from common.records.base import FormError
from common.records.client import OutboxEntry, OutboxHead

FIRST = "0" * 64
"""What the first entry has in place of a hash."""


def digest(values: dict[str, Any]) -> str:
    """The hash of an entry, given as JSON values."""
    content = {key: value for key, value in values.items() if key != "hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(entry: OutboxEntry) -> OutboxEntry:
    """The entry with its hash."""
    return replace(entry, hash=digest(form.plain(entry)))


def signed_text(head: OutboxHead) -> bytes:
    """What a signature is over."""
    return f"{head.number} {head.hash}".encode()


@dataclass(frozen=True)
class Line:
    """A line of the log as it was found."""

    position: int
    """From 1."""
    entry: OutboxEntry | None
    """None for what is no entry."""
    intact: bool
    """Whether its hash is right."""

    @property
    def number(self) -> int:
        """What it says itself, or where it stands."""
        return self.position if self.entry is None else self.entry.number


def parsed(data: bytes) -> tuple[list[Line], int]:
    """The lines of a log, and how many bytes follow the last whole one: of a line that was cut off."""
    *whole, rest = data.split(b"\n")
    return [_line(position, text) for position, text in enumerate(whole, start=1)], len(rest)


def _line(position: int, text: bytes) -> Line:
    try:
        values = json.loads(text.decode())
        entry = form.read(OutboxEntry, values)
        return Line(position, entry, digest(values) == entry.hash)
    except (FormError, ValueError, RecursionError, AttributeError):
        return Line(position, None, False)


def problems(lines: Sequence[Line], head: OutboxHead | None) -> list[str]:
    """What is wrong with a log, entry by entry; nothing if it is as it was written.

    A process that is killed between the two leaves one entry that the head does not have yet.
    """
    found = [f"entry {line.number} was edited" for line in lines if not line.intact]
    numbers = [line.number for line in lines]
    there = sorted({0, *numbers})
    found += [f"{_entries(a + 1, b - 1)} missing" for a, b in pairwise(there) if b > a + 1]
    found += [f"entry {number} is there more than once" for number in _doubles(numbers)]
    for before, after in pairwise(lines):
        if after.number < before.number:
            found.append(f"entry {after.number} stands after entry {before.number}: they were reordered")
        elif after.number == before.number + 1 and not _follows(before, after):
            found.append(
                f"entry {after.number} does not follow from entry {before.number}, which was replaced"
            )
    return found + _at_the_end(lines, head)


def _follows(before: Line, after: Line) -> bool:
    """Whether one entry has the other's hash; of one that was edited that is not asked."""
    if before.entry is None or after.entry is None or not (before.intact and after.intact):
        return True
    return after.entry.previous == before.entry.hash


def _at_the_end(lines: Sequence[Line], head: OutboxHead | None) -> list[str]:
    last = max((line.number for line in lines), default=0)
    if head is None:
        return ["the head is missing"] if last > 1 else []
    if last < head.number:
        return [f"{_entries(last + 1, head.number)} missing at the end"]
    if last > head.number + 1:
        return [f"the head ends with entry {head.number}, the log with {last}: the head is an old one"]
    named = [line.entry for line in lines if line.number == head.number]
    if named and all(entry is None or entry.hash != head.hash for entry in named):
        return [f"entry {head.number} is not the one that the head names: it was replaced"]
    return []


def _entries(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def _doubles(numbers: Sequence[int]) -> list[int]:
    return sorted(number for number, times in Counter(numbers).items() if times > 1)
