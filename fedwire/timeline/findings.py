"""What stands out in a capture, in words: what broke, who was slow, what was sent for nothing."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from fedwire.timeline.attempts import Attempt
from fedwire.timeline.comebacks import Finding, comebacks
from fedwire.timeline.history import History
from fedwire.timeline.words import mb, rate

STALL_S = 0.5
"""A pause shorter than this is none."""
STALL_FACTOR = 8
"""And it is so many times as long as what is usual between chunks."""
SLOW_FACTOR = 4
"""A link is slow that carries less than this part of what the others' do."""
SLOW_BYTES = 1 << 16
"""Less than this says nothing about a link."""
FEW_CHUNKS = 4
DAMAGE = ("BAD_CHECKSUM", "WRONG_OFFSET", "MALFORMED", "TOO_MANY_BYTES")
"""Faults that a bad link makes, and a good client does not."""

Stalls = dict[int, list[tuple[int, int]]]
"""By the identity of an attempt: lengths and beginnings."""


def stalls(history: History) -> Stalls:
    """Pauses far longer than what is usual in that transfer or, where it is short, for that client."""
    longest: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
    for attempt in history.attempts:
        if attempt.pauses:
            longest[attempt.client, attempt.up].append(attempt.pauses[0][0])
    found: Stalls = {}
    for attempt in history.attempts:
        others = longest[attempt.client, attempt.up]
        if attempt.messages > FEW_CHUNKS:
            all_of_it = attempt.end_ns - attempt.start_ns
            usual = (all_of_it - sum(pause for pause, _ in attempt.pauses)) / (attempt.messages - 1)
        elif len(others) > 2:
            usual = statistics.median(others)
        else:
            continue
        least = max(STALL_S * 1e9, STALL_FACTOR * usual)
        if long := [pause for pause in attempt.pauses if pause[0] >= least]:
            found[id(attempt)] = long
    return found


def findings(history: History, stalled: Stalls) -> tuple[Finding, ...]:
    """All that stands out, in the order of time."""
    rows = [
        *comebacks(history),
        *_outcomes(history),
        *_pauses(history, stalled),
        *_slow_links(history),
        *_missing(history),
        *_silent(history),
    ]
    return tuple(sorted(rows, key=lambda finding: finding.start))


def _about(history: History, attempt: Attempt, kind: str, text: str) -> Finding:
    return Finding(
        kind=kind,
        client=attempt.client,
        round=attempt.round,
        start=history.seconds(attempt.start_ns),
        end=history.seconds(max(attempt.end_ns, attempt.answered_ns)),
        text=text,
    )


def _outcomes(history: History) -> Iterator[Finding]:
    for attempt in history.attempts:
        update = f"{attempt.client}'s update of round {attempt.round}"
        match attempt.outcome:
            case "REJECTED" if attempt.fault in DAMAGE:
                text = f"{update} was damaged on its way and rejected ({attempt.fault}): {attempt.reason}"
                yield _about(history, attempt, "damaged", text)
            case "REJECTED" if attempt.fault != "TOO_FEW_BYTES":
                text = f"{update} was rejected ({attempt.fault}): {attempt.reason}"
                yield _about(history, attempt, "rejected", text)
            case "LATE":
                text = f"{update} came when the round was closed: {mb(attempt.payload)} for nothing"
                yield _about(history, attempt, "late", text)
            case "DUPLICATE":
                again = f"{mb(attempt.payload)} were" if attempt.payload else "nothing was"
                text = f"{update} was there already, and this changed nothing: {again} sent again"
                yield _about(history, attempt, "duplicate", text)
        if attempt.declined:
            text = f"{attempt.client} has no update for round {attempt.round}: {attempt.declined}"
            yield _about(history, attempt, "declined", text)


def _pauses(history: History, stalled: Stalls) -> Iterator[Finding]:
    for attempt in history.attempts:
        for length, begin in stalled.get(id(attempt), ()):
            what = f"{'upload' if attempt.up else 'download'} of round {attempt.round}"
            yield Finding(
                kind="stall",
                client=attempt.client,
                round=attempt.round,
                start=history.seconds(begin),
                end=history.seconds(begin + length),
                text=f"nothing moved for {length / 1e9:.1f} s in {attempt.client}'s {what}",
            )


def _slow_links(history: History) -> Iterator[Finding]:
    for up, what in ((False, "download"), (True, "upload")):
        rates: dict[str, float] = {}
        spent: dict[str, float] = {}
        for client in list(history.by_client):
            mine = [a for a in history.by_client[client] if a.up is up and a.payload >= SLOW_BYTES]
            spent[client] = sum(a.seconds for a in mine)
            if spent[client] > 0:
                rates[client] = sum(a.payload for a in mine) / spent[client]
        ordered = sorted(rates.values())
        for client, mine_is in rates.items():
            if spent[client] < STALL_S or len(rates) < 2:
                continue
            usual = _median_without(ordered, mine_is)
            if mine_is * SLOW_FACTOR < usual:
                yield Finding(
                    kind="slow link",
                    client=client,
                    round=0,
                    start=0.0,
                    end=history.seconds(history.end_ns),
                    text=f"{client} has a slow {what}: {rate(mine_is)}, the median of the others is "
                    f"{rate(usual)}; it took {spent[client]:.1f} s in all",
                )


def _median_without(ordered: list[float], left_out: float) -> float:
    """The median of all but one of these numbers."""
    k, count = bisect_left(ordered, left_out), len(ordered) - 1
    low, high = ((j + (j >= k)) for j in ((count - 1) // 2, count // 2))
    return (ordered[low] + ordered[high]) / 2


def _missing(history: History) -> Iterator[Finding]:
    """Rounds that closed without somebody who had been sent them."""
    last = max((a.round for a in history.attempts if not a.apart), default=0)
    asked: dict[tuple[int, str], Attempt] = {}
    answered: set[tuple[int, str]] = set()
    for attempt in history.attempts:
        key = attempt.round, attempt.client
        if attempt.apart:
            continue
        if not attempt.up:
            asked[key] = attempt
        elif attempt.outcome in ("ACCEPTED", "LATE", "DUPLICATE") or attempt.declined:
            answered.add(key)
    for (r, client), attempt in asked.items():
        if r < last and (r, client) not in answered:
            text = f"round {r} closed without {client}, which had been sent it"
            yield _about(history, attempt, "missing", text)


def _silent(history: History) -> Iterator[Finding]:
    """Clients that the capture does not see the end of, though it sees that of others, or later rounds."""
    ended = any(sign.kind == "finished" for signs in history.signs.values() for sign in signs)
    last_round = max((a.round for a in history.attempts if not a.apart), default=0)
    for client, signs in history.signs.items():
        mine = history.by_client[client]
        if any(sign.kind == "finished" for sign in signs) or not mine:
            continue
        cut = not mine[-1].is_whole
        if not ended and not (cut and mine[-1].round < last_round):
            continue
        heard = history.heard.get(client, mine[-1].start_ns)
        where = (
            f"in the middle of {'an upload' if mine[-1].up else 'a download'}" if cut else "between transfers"
        )
        yield Finding(
            kind="gone",
            client=client,
            round=mine[-1].round,
            start=history.seconds(heard),
            end=history.seconds(history.end_ns),
            text=f"{client} fell silent in round {mine[-1].round}, {where}, and did not come back",
        )
