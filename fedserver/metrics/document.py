"""Writes the table of docs/monitoring.md again: every metric with its labels and its meaning."""

from __future__ import annotations

import sys
from pathlib import Path

from fedserver.metrics.families import BUILD_INFO, FAMILIES, ROUND_SECONDS

BEGIN, END = "<!-- table: metrics, by make docs -->\n", "<!-- end -->\n"


def table() -> str:
    """All metrics, in the order in which they are served."""
    rows = ["| metric | kind | labels besides `run` | meaning |\n|---|---|---|---|\n"]
    families = [(family.name, family.kind, family.text, family.labels) for family in FAMILIES]
    singles = [(name, kind, text, (label,)) for name, kind, text, label in (BUILD_INFO, ROUND_SECONDS)]
    for name, kind, text, labels in (*singles, *families):
        rows.append(
            f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels) or '-'} | {text} |\n"
        )
    return "".join(rows)


def rewritten(document: str) -> str:
    """A document with the table as it is now."""
    before, _, rest = document.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text()))
