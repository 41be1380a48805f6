"""The timeline as one self-contained page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from common.page.charts import Bars
from common.page.page import Page
from common.wire.messages import CANARY, PURPOSES
from fedwire.timeline.comebacks import Finding
from fedwire.timeline.timeline import ByteRow, Timeline, TransferRow
from fedwire.timeline.words import mb, times

MAX_TRANSFERS = 50_000
"""In one page, so that it stays quick; that is a capture of 100,000 messages at the least."""
MAX_FINDINGS = 60
"""In the list above the picture."""
UNFOLDED = 6
"""Of these that are seen at once."""
MAX_CELLS = 2000
"""Rows of the table of bytes."""
MAX_BARS = 60
"""Of bytes by round, or by client."""
SCRIPT = Path(__file__).with_name("timeline.js")
BAD = {
    "server restarted",
    "client restarted",
    "restarted",
    "damaged",
    "rejected",
    "gone",
    "missing",
    "declined",
}
LEGEND = (
    "A bar is one call; it fills as the bytes come, so a flat part is a pause. Hatched: nothing moved. "
    "A cross: the transfer broke off, or the update was rejected, late or declined. A wedge at the "
    "beginning: it goes on where one before broke off; a stroke: all of it is sent again; dashed: a "
    "duplicate. Dotted: the client was gone. A red band: the server was."
)
HANDLING = (
    "Drag, or shift and wheel, to pan; pinch, double-click, ctrl and wheel, or the wheel alone after a "
    "click, to zoom. With the keyboard: arrows choose a transfer, + and - zoom, shift and arrows pan, 0 "
    "shows all, Enter shows the chosen one. Times are when the side that wrote the capture handed a "
    "message to gRPC or got it from there: what is sent may be on its way a little longer."
)
EXPLAINED = {
    "whole": "all has come",
    "accepted": "accepted: it counts",
    "cut": "broke off before all had come",
    "unanswered": "the answer is not in the capture",
    "duplicate": "duplicate: it was there already, and changed nothing",
    "late": "late: the round was closed, it counts for nothing",
    "rejected": "rejected: something was wrong with it",
    "declined": "the client has no update for this round",
}


@dataclass(frozen=True)
class _Table:
    headings: list[str]
    rows: list[list[str]]


def timeline_page(found: Timeline, name: str) -> Page:
    """The page of a capture called so."""
    run = f"run {found.run_id[:12]}" if found.run_id else "a run"
    lead = f"`{name}`: {found.messages:,} messages from {found.began[:19].replace('T', ' ')} UTC on"
    page = Page(f"{run} on the wire", lead, scripts=[SCRIPT])
    total = sum(row.bytes for row in found.bytes)
    purposes = _by_purpose(found.bytes)
    page.facts(
        [
            ("time", f"{found.seconds:,.1f} s"),
            ("rounds", str(len(found.rounds))),
            ("clients", str(len(found.clients))),
            ("transfers", f"{len(found.transfers):,}"),
            ("bytes", mb(total)),
            *((f"for {purpose}", mb(count)) for purpose, count in purposes.items()),
        ]
    )
    _notices(page, found)
    _picture(page, found)
    _bytes(page, found)
    return page


def _notices(page: Page, found: Timeline) -> None:
    page.heading("What stands out")
    if not found.findings:
        page.text(
            "Nothing: every transfer was whole the first time, and nobody was gone or far slower than others."
        )
    in_order = _gravest_first(found)[:MAX_FINDINGS]
    notices = [(finding.kind, _dated(finding), finding.kind in BAD) for finding in in_order]
    page.notices(notices[:UNFOLDED])
    if notices[UNFOLDED:]:
        folded = f"{len(notices) - UNFOLDED} more: {_counted(in_order[UNFOLDED:])}"
        page.notices(notices[UNFOLDED:], first=UNFOLDED, folded=folded)
    if len(found.findings) > MAX_FINDINGS:
        page.text(f"{MAX_FINDINGS} of {len(found.findings)} are listed; `--json` has all.", note=True)
    if found.unreadable:
        page.text(f"{times(found.unreadable, 'message')} could not be read, and are left out.")
    for problem in found.problems:
        page.text(problem, note=True)


def _gravest_first(found: Timeline) -> list[Finding]:
    return sorted(found.findings, key=lambda finding: finding.kind not in BAD)


def _counted(findings: list[Finding]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(f.kind for f in findings).most_common())


def _dated(finding: Finding) -> str:
    return f"{finding.start:.1f} s: {finding.text}" if finding.start else finding.text


def _picture(page: Page, found: Timeline) -> None:
    page.heading("Who sent what when")
    if len(found.transfers) > MAX_TRANSFERS:
        page.text(
            f"The picture has the first {MAX_TRANSFERS:,} of {len(found.transfers):,} transfers; "
            "`--client` and `--round` choose others."
        )
    page.place("timeline", _document(found))
    page.text(LEGEND, note=True)
    page.text(HANDLING, note=True)


def _document(found: Timeline) -> dict[str, object]:
    """As short as it gets: lists instead of names, which the script knows the order of."""
    shown = found.transfers[:MAX_TRANSFERS]
    until = shown[-1].start if len(shown) < len(found.transfers) else found.seconds
    places = {client: k for k, client in enumerate(found.clients)}
    outcomes = list(EXPLAINED)
    present = Counter[str]()
    for transfer in shown:
        present.update(transfer.bytes)
    purposes = [p for p in (*PURPOSES, CANARY) if present[p]]
    return {
        "clients": [client or "(no seat)" for client in found.clients],
        "seconds": found.seconds,
        "purposes": purposes,
        "outcomes": outcomes,
        "explained": EXPLAINED,
        "rounds": [(mark.round, mark.start, mark.end) for mark in found.rounds],
        "transfers": [_packed(row, places, purposes, outcomes) for row in shown],
        "training": [(places[t.client], t.round, t.start, t.end) for t in found.training if t.start <= until],
        "findings": [
            (f.kind, places.get(f.client) if f.client else None, f.round, f.start, f.end)
            for f in _gravest_first(found)
        ],
    }


def _packed(
    row: TransferRow, places: dict[str, int], purposes: list[str], outcomes: list[str]
) -> tuple[object, ...]:
    return (
        places[row.client],
        row.round,
        int(row.direction == "up"),
        row.attempt,
        row.start,
        row.end,
        row.answered,
        row.announced,
        row.skipped,
        outcomes.index(row.outcome) if row.outcome in outcomes else 0,
        row.apart,
        [row.bytes.get(purpose, 0) for purpose in purposes],
        row.reason,
        row.stalls,
        row.progress,
    )


def _bytes(page: Page, found: Timeline) -> None:
    page.heading("What the bytes were for")
    by_round = _parts(found.bytes, lambda row: f"round {row.round}" if row.round else "no round")
    by_client = _parts(found.bytes, lambda row: row.client or "(no seat)")
    page.charts(
        [
            Bars(title="bytes by round", parts=_grouped(by_round), horizontal=False),
            Bars(title="bytes by client", parts=_largest(by_client)),
        ]
    )
    page.table(_table(found), folded=f"bytes by round and client (at most {MAX_CELLS:,} rows)")


def _by_purpose(rows: Iterable[ByteRow]) -> dict[str, int]:
    """Bytes by purpose, in the order of purposes."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.purpose] += row.bytes
    return {p: counts[p] for p in (*PURPOSES, CANARY) if counts[p]}


def _parts(rows: Iterable[ByteRow], name: Callable[[ByteRow], str]) -> dict[str, dict[str, int]]:
    """Bytes by whatever a row is called, and purpose."""
    parts: dict[str, Counter[str]] = {}
    for row in rows:
        parts.setdefault(name(row), Counter())[row.purpose] += row.bytes
    return {each: dict(counts) for each, counts in parts.items()}


def _grouped(parts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """At most so many: neighbours are added up."""
    names = list(parts)
    size = -(-len(names) // MAX_BARS) or 1
    grouped = {}
    for k in range(0, len(names), size):
        group = names[k : k + size]
        total: Counter[str] = Counter()
        for name in group:
            total.update(parts[name])
        grouped[group[0] if len(group) == 1 else f"{group[0]}-{group[-1]}"] = dict(total)
    return grouped


def _largest(parts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """At most so many: the others are one bar."""
    if len(parts) <= MAX_BARS:
        return parts
    order = sorted(parts, key=lambda name: -sum(parts[name].values()))
    rest: Counter[str] = Counter()
    for name in order[MAX_BARS:]:
        rest.update(parts[name])
    return {name: parts[name] for name in order[:MAX_BARS]} | {f"{len(order) - MAX_BARS} others": dict(rest)}


def _table(found: Timeline) -> _Table:
    purposes = list(_by_purpose(found.bytes))
    cells: dict[tuple[int, str, str], Counter[str]] = {}
    for row in found.bytes:
        cells.setdefault((row.round, row.client, row.direction), Counter())[row.purpose] += row.bytes
    shown = [
        [str(r or "none"), client or "(no seat)", direction, *(f"{counts[p]:,}" for p in purposes)]
        for (r, client, direction), counts in list(cells.items())[:MAX_CELLS]
    ]
    return _Table(["round", "client", "direction", *purposes], shown)
