"""The form of a result: tables on the terminal, and the same with machine and command as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure import machine

Value = float | int | str | None
REVISION = "BENCH_REVISION"
"""Environment: what the measured tree is called, where git cannot tell."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """With the flags that all benchmarks have; `doc` is the docstring, whose first line is the question."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON too")
    made.add_argument("--quick", action="store_true", help="the smallest form: does it run at all?")
    return made


class Report:
    """What one run of a benchmark has found."""

    def __init__(self, question: str, json_file: Path | None = None, *, quick: bool = False) -> None:
        self._question = question
        self._json = json_file
        self._quick = quick
        self._tables: dict[str, list[dict[str, Value]]] = {}
        self._ratios: dict[str, dict[str, float]] = {}
        self._started, self._load = time.time(), machine.load()

    @classmethod
    def asked_for(cls, arguments: argparse.Namespace, doc: str | None) -> Report:
        """With what the command line says."""
        return cls((doc or "").partition("\n")[0], arguments.json, quick=arguments.quick)

    def row(self, table: str, **values: Value) -> None:
        """Adds a row to a table, which is made with its first row."""
        self._tables.setdefault(table, []).append(dict(values))

    def times(self, table: str, seconds: Mapping[str, float]) -> None:
        """Adds a table of times and their ratios to the first, because machines differ and are noisy."""
        first = next(iter(seconds.values()))
        for name, each in seconds.items():
            self.row(table, what=name, ms=each * 1e3, ratio=each / first)

    def ratio(
        self, name: str, value: float, *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Adds a figure that means the same on every machine, with the limit that it should keep, if any."""
        # The smallest form is too small for limits to mean anything.
        limits = {} if self._quick else {"at_most": at_most, "at_least": at_least}
        self._ratios[name] = {"value": value} | {k: v for k, v in limits.items() if v is not None}

    def as_json(self) -> dict[str, Any]:
        """Everything that was found, and where and when and by which command."""
        return {
            "benchmark": _name(Path(sys.argv[0])),
            "question": self._question,
            "command": _command(),
            "revision": os.environ.get(REVISION) or machine.revision(),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
            "seconds": round(time.time() - self._started, 1),
            "load": {"before": self._load, "after": machine.load()},
            "machine": machine.description(),
            "ratios": self._ratios,
            "tables": self._tables,
        }

    def finish(self) -> None:
        """Prints the tables and writes the JSON."""
        found = self.as_json()
        print(text(found))
        if self._json is not None:
            self._json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def _name(script: Path) -> str:
    """Of a benchmark, which is a file or a package."""
    return script.parent.name if script.stem == "__main__" else script.stem


def _command() -> str:
    script, *arguments = sys.argv
    what = ["-m", _name(Path(script))] if Path(script).stem == "__main__" else [_relative(script)]
    return shlex.join(["python", *what, *map(_relative, arguments)])


def _relative(word: str) -> str:
    """A path without what depends on where the tree is."""
    return os.path.relpath(word) if Path(word).is_relative_to(Path.cwd()) else word


def text(found: Mapping[str, Any]) -> str:
    """A result for people."""
    lines = [found["question"]]
    for title, rows in found["tables"].items():
        lines += ["", f"{title}:", *_aligned(rows)]
    if found["ratios"]:
        lines += ["", "ratios:"]
        for name, ratio in found["ratios"].items():
            lines.append(f"  {name:60} {shown(ratio['value']):>8}{_verdict(ratio)}")
    return "\n".join(lines)


def _verdict(ratio: Mapping[str, float]) -> str:
    if "at_most" in ratio:
        good = ratio["value"] <= ratio["at_most"]
        return f"  at most {shown(ratio['at_most'])}: {'yes' if good else 'NO'}"
    if "at_least" in ratio:
        good = ratio["value"] >= ratio["at_least"]
        return f"  at least {shown(ratio['at_least'])}: {'yes' if good else 'NO'}"
    return ""


def _aligned(rows: list[dict[str, Value]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([shown(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(names))]
    words = {name for row in rows for name, value in row.items() if isinstance(value, str)}
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if name in words else cell.rjust(width)
            for cell, width, name in zip(line, widths, names, strict=True)
        ).rstrip()
        for line in cells
    ]


def shown(value: Value) -> str:
    """A value with three digits or as many as it needs."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else value
    if not value or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"
