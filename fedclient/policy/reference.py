"""Writes the table of docs/site-policy.md again: the keys of site.toml and what each rule refuses."""

from __future__ import annotations

import sys
from pathlib import Path

from common.records.base import described, members
from common.records.document import field_docstrings
from fedclient.policy.policy import KEYS, Policy
from fedclient.policy.rules import RULES

BEGIN, END = "<!-- table: keys of site.toml, by make docs -->\n", "<!-- end -->\n"


def table() -> str:
    """All keys, in the order of their declaration."""
    meanings, forms = field_docstrings(Policy), members(Policy)
    refuses = {rule.__name__: rule.__doc__ or "" for rule in RULES}
    rows = ["| key | value | meaning | refuses |\n|---|---|---|---|\n"]
    for key in KEYS:
        value = described(forms[key]).removesuffix(" or null")
        rows.append(f"| `{key}` | {value} | {meanings[key]} | {refuses.get(key, 'nothing')} |\n")
    return "".join(rows)


def rewritten(document: str) -> str:
    """A document with the table as it is now."""
    before, _, rest = document.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text()))
