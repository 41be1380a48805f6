"""Writes the table of docs/reference/metrics.md again: how a model is judged."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from common.metrics.choice import AUROC, BUILT_IN, FROM_CONFUSION, LOSS, OF_A_TEST_SET

BEGIN, END = "<!-- table: metrics, by make docs -->\n", "<!-- end -->\n"
OTHERS = {
    AUROC: "Area under the ROC curve, from counts of pairs: the mean over classes, each against the rest, "
    "and over sites by their examples.",
    LOSS: "Mean cross-entropy, or the mean of the task's own loss.",
}


def table() -> str:
    """All built-in metrics."""
    rows = ["| metric | meaning | better | computed |\n|---|---|---|---|\n"]
    for name in BUILT_IN:
        meaning = inspect.getdoc(FROM_CONFUSION[name]) if name in FROM_CONFUSION else OTHERS[name]
        better = "smaller" if name == LOSS else "larger"
        by_server = "by the server, or " if name in OF_A_TEST_SET else ""
        rows.append(f"| `{name}` | {meaning} | {better} | {by_server}from the sites' counts |\n")
    return "".join(rows)


def rewritten(document: str) -> str:
    """A document with the table as it is now."""
    before, _, rest = document.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text()))
