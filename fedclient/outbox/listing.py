"""The outbox for people and scripts: what has left, with receipts, and whether the log can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, kw_only=True)
class Left:
    """Something that has left, and what the server said."""

    number: int
    time: str
    kind: str
    run: str
    round: int
    update: str
    tensors: int
    bytes: int
    norm: float | None
    told: tuple[str, ...]
    receipt: str | None
    """None where the server has not answered."""
    receipt_time: str | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether an outbox can be believed."""

    entries: int
    torn_bytes: int
    key: str
    key_changes: tuple[int, ...]
    problems: tuple[str, ...]


def departures(folder: Path) -> list[Left]:
    """Everything that has left, oldest first."""
    entries = [line.entry for line in read_outbox(folder)[0] if line.entry is not None]
    receipts = {entry.receipt_of: entry for entry in entries if entry.kind == "receipt"}
    return [_left(entry, receipts.get(entry.number)) for entry in entries if entry.kind not in NOTES]


def _left(entry: OutboxEntry, receipt: OutboxEntry | None) -> Left:
    return Left(
        number=entry.number,
        time=entry.time,
        kind=entry.kind,
        run=entry.run or (receipt.run if receipt is not None else ""),
        round=entry.round,
        update=entry.update,
        tensors=entry.tensors,
        bytes=entry.bytes,
        norm=entry.norm,
        told=entry.told,
        receipt=receipt.outcome if receipt is not None else None,
        receipt_time=receipt.time if receipt is not None else None,
    )


def show(rows: Sequence[Left]) -> None:
    """Prints them as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("number", "time", "kind", "run", "round", "tensors", "bytes", "norm", "receipt"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.number),
            row.time[:19],
            row.kind,
            row.run,
            str(row.round or "-"),
            str(row.tensors),
            f"{row.bytes:,}",
            "-" if row.norm is None else f"{row.norm:.6g}",
            row.receipt or "none",
        )
    console = Console(markup=False)
    needed = Measurement.get(console, console.options.update(max_width=MOST_COLUMNS), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
    console.print(f"{len(rows)} departures, {sum(row.bytes for row in rows):,} bytes", highlight=False)


def verdict(folder: Path, certificate: Path | None) -> Verdict:
    """Whether a log is whole and as it was written; with a certificate, whether its key has signed it."""
    lines, torn, head = read_outbox(folder)
    wanted = None if certificate is None else key_of(certificate)
    return Verdict(
        entries=len(lines),
        torn_bytes=torn,
        key=fingerprint(head.key) if head is not None and head.key else "",
        key_changes=tuple(line.number for line in lines if line.entry and line.entry.kind == "key"),
        problems=tuple(chain.problems(lines, head) + signature_problems(head, wanted)),
    )
