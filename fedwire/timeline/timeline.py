"""A capture as a timeline: rounds, transfers, training in between, bytes, and what stands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from common.names import natural
from fedwire.source import Capture
from fedwire.timeline.attempts import Attempt
from fedwire.timeline.comebacks import Finding
from fedwire.timeline.findings import Stalls, findings, stalls
from fedwire.timeline.history import History, read_history


@dataclass(frozen=True, kw_only=True)
class TransferRow:
    """One call that carried a broadcast or an update, or a part of it. Times are seconds since the start."""

    client: str
    round: int
    direction: str
    attempt: int
    """Calls that it took so far to carry this, this one included."""
    start: float
    end: float
    answered: float | None
    """Of an update: when the server's answer passed."""
    announced: int
    """Bytes of all tensors of the broadcast or the update."""
    skipped: int
    """Of these, bytes that had come before: it goes on from there."""
    bytes: dict[str, int]
    """By purpose."""
    outcome: str
    """whole, cut, accepted, unanswered, duplicate, late, rejected, declined."""
    reason: str
    apart: str
    """rehearsal or evaluation, if it is part of no round."""
    stalls: tuple[tuple[float, float], ...]
    """When nothing moved: from, until."""
    progress: tuple[tuple[float, int], ...]
    """Times and bytes of tensors by then, a few of them."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """From the end of a download to the beginning of the upload."""

    client: str
    round: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class RoundMark:
    """A round: from its first download to the last answer to an update."""

    round: int
    start: float
    end: float
    clients: int
    updates: int


@dataclass(frozen=True, kw_only=True)
class ByteRow:
    """Bytes of one round and client; round 0 is what belongs to none."""

    round: int
    client: str
    direction: str
    purpose: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Who sent what when."""

    run_id: str
    began: str
    """When the first message passed, in UTC."""
    seconds: float
    messages: int
    unreadable: int
    clients: tuple[str, ...]
    rounds: tuple[RoundMark, ...]
    transfers: tuple[TransferRow, ...]
    training: tuple[Training, ...]
    bytes: tuple[ByteRow, ...]
    findings: tuple[Finding, ...]
    problems: tuple[str, ...] = ()
    """What is wrong with the capture itself."""


def timeline(capture: Capture, client: str | None = None, r: int | None = None) -> Timeline:
    """The timeline of a capture, or that of one client or one round of it."""
    history = read_history(capture)
    stalled = stalls(history)
    found = findings(history, stalled)
    shown = [a for a in history.attempts if client in (None, a.client) and r in (None, a.round)]
    cells = sorted(history.bytes.items())
    return Timeline(
        run_id=capture.run_id,
        began=datetime.fromtimestamp(history.start_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        seconds=history.seconds(history.end_ns),
        messages=history.messages,
        unreadable=history.unreadable,
        clients=tuple(sorted({a.client for a in shown}, key=natural)),
        rounds=_rounds(history, shown),
        transfers=tuple(_row(history, a, stalled) for a in shown),
        training=_training(history, shown),
        bytes=tuple(
            ByteRow(round=cell[0], client=cell[1], direction=cell[2], purpose=cell[3], bytes=count)
            for cell, count in cells
            if client in (None, cell[1]) and r in (None, cell[0])
        ),
        findings=tuple(
            f for f in found if client in (None, f.client or client) and r in (None, f.round or r)
        ),
    )


def _row(history: History, attempt: Attempt, stalled: Stalls) -> TransferRow:
    seconds = history.seconds
    return TransferRow(
        client=attempt.client,
        round=attempt.round,
        direction="up" if attempt.up else "down",
        attempt=attempt.number,
        start=seconds(attempt.start_ns),
        end=seconds(attempt.end_ns),
        answered=seconds(attempt.answered_ns) if attempt.answered_ns else None,
        announced=attempt.announced,
        skipped=attempt.skipped,
        bytes=dict(attempt.bytes),
        outcome=_outcome(attempt),
        reason=attempt.declined or attempt.reason,
        apart=attempt.apart,
        stalls=tuple((seconds(at), seconds(at + length)) for length, at in stalled.get(id(attempt), ())),
        progress=tuple((seconds(at), count) for at, count in attempt.points),
    )


def _outcome(attempt: Attempt) -> str:
    if attempt.declined:
        return "declined"
    if attempt.outcome and attempt.fault != "TOO_FEW_BYTES":
        return attempt.outcome.lower()
    if not attempt.is_whole:
        return "cut"
    return "unanswered" if attempt.up else "whole"


def _training(history: History, attempts: Iterable[Attempt]) -> tuple[Training, ...]:
    had: dict[tuple[str, int], int] = {}
    """When a client had all of a round."""
    found = []
    for attempt in attempts:
        key = attempt.client, attempt.round
        if not attempt.up and attempt.is_whole:
            had[key] = attempt.end_ns
        elif attempt.up and (since := had.pop(key, None)) is not None:
            until = max(since, attempt.start_ns)
            found.append((*key, history.seconds(since), history.seconds(until)))
    return tuple(Training(client=c, round=r, start=start, end=end) for c, r, start, end in found)


def _rounds(history: History, attempts: Iterable[Attempt]) -> tuple[RoundMark, ...]:
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    asked: set[tuple[int, str]] = set()
    updates: Counter[int] = Counter()
    taken: set[tuple[int, str]] = set()
    for a in attempts:
        if a.apart or not a.round:
            continue
        starts[a.round] = min(starts.get(a.round, a.start_ns), a.start_ns)
        ends[a.round] = max(ends.get(a.round, 0), a.end_ns, a.answered_ns)
        asked.add((a.round, a.client))
        if a.outcome == "ACCEPTED" and (a.round, a.client) not in taken:
            taken.add((a.round, a.client))
            updates[a.round] += 1
    clients = Counter(r for r, _ in asked)
    return tuple(
        RoundMark(
            round=r,
            start=history.seconds(start),
            end=history.seconds(ends[r]),
            clients=clients[r],
            updates=updates[r],
        )
        for r, start in sorted(starts.items())
    )
