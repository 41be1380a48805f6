"""The outbox for people and scripts: what has left, with receipts, and whether the log can be believed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from common.records.client import OutboxEntry
from fedclient.keys.signatures import fingerprint, key_of
from fedclient.outbox import chain
from fedclient.outbox.log import read_outbox, signature_problems

MOST_COLUMNS = 10_000
NOTES = ("receipt", "key")
"""Kinds of entries that are no departures."""
_SHOWN = ("number", "time", "kind", "run", "round", "update", "tensors", "bytes", "norm", "told")


def departures(folder: Path) -> list[dict[str, Any]]:
    """Everything that has left, oldest first; `receipt` is null where the server has not answered."""
    entries = [line.entry for line in read_outbox(folder)[0] if line.entry is not None]
    receipts = {entry.receipt_of: entry for entry in entries if entry.kind == "receipt"}
    return [_row(entry, receipts.get(entry.number)) for entry in entries if entry.kind not in NOTES]


def _row(entry: OutboxEntry, receipt: OutboxEntry | None) -> dict[str, Any]:
    values = asdict(entry)
    row = {key: values[key] for key in _SHOWN}
    if receipt is None:
        return row | {"receipt": None, "receipt_time": None}
    return row | {
        "run": entry.run or receipt.run,
        "receipt": receipt.outcome,
        "receipt_time": receipt.time,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Prints them as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("number", "time", "kind", "run", "round", "tensors", "bytes", "norm", "receipt"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        norm = "-" if row["norm"] is None else f"{row['norm']:.6g}"
        table.add_row(
            str(row["number"]),
            row["time"][:19],
            row["kind"],
            row["run"],
            str(row["round"] or "-"),
            str(row["tensors"]),
            f"{row['bytes']:,}",
            norm,
            row["receipt"] or "none",
        )
    console = Console(markup=False)
    needed = Measurement.get(console, console.options.update(max_width=MOST_COLUMNS), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
    console.print(f"{len(rows)} departures, {sum(row['bytes'] for row in rows):,} bytes", highlight=False)


def verdict(folder: Path, certificate: Path | None) -> dict[str, Any]:
    """Whether a log is whole and as it was written; with a certificate, whether its key has signed it."""
    lines, torn, head = read_outbox(folder)
    wanted = None if certificate is None else key_of(certificate)
    problems = chain.problems(lines, head) + signature_problems(head, wanted)
    return {
        "entries": len(lines),
        "torn_bytes": torn,
        "key": fingerprint(head.key) if head is not None and head.key else "",
        "key_changes": [line.number for line in lines if line.entry and line.entry.kind == "key"],
        "problems": problems,
    }
