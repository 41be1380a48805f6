"""Forms: what is read has its type, what has another is named in one line, and nothing else gets through."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from common import json_files
from common.errors import StateError
from common.records import form
from common.records.base import FORMAT, REST, Count, FormError, Positive, Record


class Colour(Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Point:
    """Part of a record."""

    x: float
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Example(Record):
    """A record with every kind of field."""

    count: Count
    on: bool
    colour: Colour
    size: float | None
    points: tuple[Point, ...]
    pair: tuple[int, str]
    by_index: dict[int, float]
    width: int = 3
    more: dict[str, int | str] = field(metadata=REST)


def value() -> dict[str, Any]:
    """An example as JSON."""
    return {
        "format": FORMAT,
        "count": 0,
        "on": True,
        "colour": "red",
        "size": None,
        "points": [{"x": 1}, {"x": 0.5, "label": "b"}],
        "pair": [1, "a"],
        "by_index": {"0": 1.5, "10": 2},
        "width": 3,
        "extra": "kept",
    }


def test_what_is_read_has_its_types_and_is_written_as_it_came() -> None:
    found = form.read(Example, value())
    assert found.points == (Point(x=1.0), Point(x=0.5, label="b"))
    assert (found.colour, found.pair, found.by_index) == (Colour.RED, (1, "a"), {0: 1.5, 10: 2.0})
    assert found.more == {"extra": "kept"}
    assert json.loads(form.text(found)) == value()
    assert form.read(Example, json.loads(form.text(found))) == found


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda v: v.pop("count"), "count: expected whole number from 0, got nothing"),
    (lambda v: v.update(count=-1), "count: expected whole number from 0, got -1"),
    (lambda v: v.update(count=True), "count: expected whole number from 0, got true"),
    (lambda v: v.update(count=1.0), "count: expected whole number from 0, got 1.0"),
    (lambda v: v.update(count=1 << 63), "count: expected whole number from 0, got 9223372036854775808"),
    (lambda v: v.update(on=1), "on: expected true or false, got 1"),
    (lambda v: v.update(on=None), "on: expected true or false, got null"),
    (lambda v: v.update(colour="green"), 'colour: expected one of red, blue, got "green"'),
    (lambda v: v.update(colour=[]), "colour: expected one of red, blue, got []"),
    (lambda v: v.update(size="1"), 'size: expected number, got "1"'),
    (lambda v: v.update(size=math.inf), "size: expected number, got Infinity"),
    (lambda v: v.update(size=math.nan), "size: expected number, got NaN"),
    (lambda v: v.update(size=10**400), "size: expected number, got 1000"),
    (lambda v: v.update(points={}), "points: expected [{...}, ...], got {}"),
    (lambda v: v["points"].append(7), "points.2: expected {...}, got 7"),
    (lambda v: v["points"][1].update(label=7), "points.1.label: expected text, got 7"),
    (lambda v: v.update(pair=[1]), "pair: expected [whole number, text], got [1]"),
    (lambda v: v.update(pair=[1, "a", 2]), "pair: expected [whole number, text], got"),
    (lambda v: v["pair"].reverse(), 'pair.0: expected whole number, got "a"'),
    (lambda v: v["by_index"].update({"01": 1}), "by_index.01: expected whole numbers as names"),
    (lambda v: v["by_index"].update({"x": 1}), "by_index.x: expected whole numbers as names"),
    (lambda v: v["by_index"].update({"9" * 30: 1}), "expected whole numbers as names"),
    (lambda v: v.update(extra=[]), "extra: expected whole number or text, got []"),
    (lambda v: v.update(format=FORMAT + 1), f"format: expected {FORMAT} at most, got {FORMAT + 1}"),
    (lambda v: v.update(format="2"), 'format: expected whole number from 1, got "2"'),
    (lambda v: v.update(format=0), "format: expected whole number from 1, got 0"),
    (lambda v: v.update(pair="x" * 1000), "pair: expected [whole number, text], got " + '"xxxx'),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[message[:40] for _, message in CHANGES])
def test_another_form_is_named_with_its_place(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    changed = value()
    change(changed)
    with pytest.raises(FormError) as caught:
        form.read(Example, changed)
    assert str(caught.value).startswith(message) or message in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("other", [None, 3, "text", [], [value()], True])
def test_a_record_is_an_object(other: object) -> None:
    with pytest.raises(FormError, match=r"^expected \{\.\.\.\}, got "):
        form.read(Example, other)


def test_what_is_none_by_default_is_left_out_and_what_is_not_finite_is_null() -> None:
    assert form.plain(Point(x=math.nan)) == {"x": None}
    assert form.plain({"a": (math.inf, 1.5)}) == {"a": [None, 1.5]}
    without = {name: inner for name, inner in value().items() if name != "width"}
    assert form.read(Example, without).width == 3, "a default stands in for a missing key"


@dataclass(frozen=True, kw_only=True)
class Renamed(Record):
    """A record that had another key in its first format."""

    new: Positive

    @classmethod
    def from_first(cls, value: Any) -> Any:
        return {"new": value.get("old")} if isinstance(value, dict) else value


def test_a_record_without_a_format_is_of_the_first() -> None:
    assert form.read(Renamed, {"old": 3}) == Renamed(format=1, new=3)
    assert form.read(Renamed, {"format": FORMAT, "new": 3}) == Renamed(new=3)
    with pytest.raises(FormError, match="new: expected whole number from 1, got null"):
        form.read(Renamed, {})


def test_files_say_which_of_them_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    json_files.write(path, Renamed(new=1))
    assert json_files.read(path, Renamed) == Renamed(new=1)
    for content, message in (
        ('{"format": 2, "new": 0}', r"a\.json: new: expected .*, got 0; remove it$"),
        ("{", r"a\.json: expected JSON, got something else \(.*\); remove it$"),
        ("[" * 100_000, r"a\.json: expected JSON, got something else \(.*\); remove it$"),
        ("\udcff", r"a\.json: expected JSON, got something else \(.*\); remove it$"),
        (f'{{"format": {FORMAT + 1}}}', "; a later release has written it: use that one$"),
    ):
        path.write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(StateError, match=message):
            json_files.read(path, Renamed, "remove it")
    with pytest.raises(StateError, match=r"b\.json cannot be read: No such file or directory"):
        json_files.read(tmp_path / "b.json", Renamed)


def test_lines_grow_one_by_one_and_a_cut_off_one_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for number in (1, 2):
        json_files.append(path, Renamed(new=number))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"format": 2, "ne')
    assert [record.new for record in json_files.read_lines(path, Renamed)] == [1, 2]
    path.write_bytes(whole + b"{}\n")
    with pytest.raises(StateError, match=r"a\.jsonl, line 3: new: expected"):
        list(json_files.read_lines(path, Renamed))
    json_files.write_lines(path, [Renamed(new=5)])
    assert path.read_text() == '{"format": 2, "new": 5}\n'
