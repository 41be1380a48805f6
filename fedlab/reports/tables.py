"""Tables as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import printable


@dataclass(frozen=True)
class Table:
    """Headings and rows of text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table in Markdown."""
        rule = ["---", *["---:"] * (len(self.headings) - 1)]
        lines = (self.headings, rule, *self.rows)
        return "".join(f"| {' | '.join(map(printable, line))} |\n" for line in lines)

    def save(self, folder: Path, name: str) -> None:
        """Writes NAME.md, NAME.csv and NAME.json."""
        (folder / f"{name}.md").write_text(self.markdown())
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([self.headings, *self.rows])
        records = [dict(zip(self.headings, row, strict=True)) for row in self.rows]
        (folder / f"{name}.json").write_text(json.dumps(records, indent=2) + "\n")
