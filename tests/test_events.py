"""Events: one thing that happened, as a line for people and as a JSON object."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from common.events import Event, JsonLog, Level, TextLog, of_run, to_all


@dataclass(frozen=True, kw_only=True)
class UpdateLost(Event):
    """An event as a package would define it."""

    level: ClassVar[Level] = Level.WARNING
    size: int

    def text(self) -> str:
        """For people."""
        return f"round {self.round}: {self.client} lost {self.size} bytes: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Looked(Event):
    """A detail."""

    level: ClassVar[Level] = Level.DETAIL

    def text(self) -> str:
        """For people."""
        return "looked"


LOST = UpdateLost(round=3, client="clinic", size=12, reason="disk\nfull")


def test_the_text_is_one_line_with_the_time() -> None:
    out = io.StringIO()
    TextLog(file=out)(LOST)
    clock, _, text = out.getvalue().partition(" ")
    assert len(clock) == len("12:00:00")
    assert text == "round 3: clinic lost 12 bytes: disk full\n"


def test_json_has_the_fields_and_the_text() -> None:
    out = io.StringIO()
    of_run(JsonLog(file=out), "a1b2")(LOST)
    found = json.loads(out.getvalue())
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning",
        "event": "update_lost",
        "run": "a1b2",
        "round": 3,
        "client": "clinic",
        "reason": "disk\nfull",
        "size": 12,
        "text": "round 3: clinic lost 12 bytes: disk full",
    }


def test_levels_choose_what_is_shown() -> None:
    quiet, usual, verbose = io.StringIO(), io.StringIO(), io.StringIO()
    emit = to_all(TextLog(Level.WARNING, quiet), TextLog(Level.NOTICE, usual), TextLog(Level.DETAIL, verbose))
    emit(Looked())
    emit(LOST)
    lines = [len(out.getvalue().splitlines()) for out in (quiet, usual, verbose)]
    assert lines == [1, 1, 2]


@dataclass(frozen=True, kw_only=True)
class Weighed(Event):
    """An event with numbers, some of which JSON does not have."""

    times: float
    each: tuple[float, ...]

    def text(self) -> str:
        """For people."""
        return f"{self.times} times"


def test_numbers_that_are_not_finite_are_null() -> None:
    out = io.StringIO()
    JsonLog(file=out)(Weighed(times=math.inf, each=(1.5, math.nan)))
    record = json.loads(out.getvalue(), parse_constant=pytest.fail)
    assert (record["times"], record["each"]) == (None, [1.5, None])


@pytest.mark.parametrize("log", [TextLog, JsonLog])
def test_a_standard_output_that_is_full_ends_nothing_and_a_file_is_told_of(
    log: type[TextLog | JsonLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="space"), Path("/dev/full").open("w") as full:  # noqa: PT012
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            log()(LOST)
        log(file=full)(LOST)
