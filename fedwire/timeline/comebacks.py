"""Who broke off and came back: the server, a client's process, or only its connection.

A client that comes back says which was the case. One whose process went on asks for the round after the last
one that it is done with; one that was started again remembers none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from fedwire.timeline.attempts import Attempt
from fedwire.timeline.history import History, Sign
from fedwire.timeline.words import mb, times


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that does not happen in a run in which all goes well."""

    kind: str
    client: str
    """Empty for what is not one client's."""
    round: int
    """0 for what belongs to none."""
    start: float
    """Seconds since the first message."""
    end: float
    text: str


@dataclass(frozen=True)
class _Break:
    """A client that joined again, or the server: when it was last heard of, and when it was back."""

    last_ns: int
    back_ns: int


def comebacks(history: History) -> Iterator[Finding]:
    """One for every time that somebody was gone and came back."""
    breaks = []
    for old, new in itertools.pairwise(sorted(history.processes.items(), key=lambda item: item[1])):
        gone = _Break(old[1][1], new[1][0])
        breaks.append(gone)
        yield _restart(history, new[0], gone)
    for client, signs in history.signs.items():
        joins = [sign for sign in signs if sign.kind == "join"][1:]
        for join in joins:
            if not any(_explains(gone, signs, join) for gone in breaks):
                yield _return(history, client, join)


def _explains(gone: _Break, signs: list[Sign], join: Sign) -> bool:
    """Whether this is the first time that a client joins after a break that all clients feel."""
    return join == next((s for s in signs if s.kind == "join" and s.time_ns >= gone.back_ns), None)


def _restart(history: History, process: int, gone: _Break) -> Finding:
    """The capture goes on with another process: the server's, unless a client there has lost its memory."""
    later = [
        (client, _remembers(history, client, gone.back_ns))
        for client, signs in history.signs.items()
        if any(sign.process == process for sign in signs)
    ]
    back = [client for client, _ in later]
    forgot = [client for client, remembers in later if remembers is False]
    away = (gone.back_ns - gone.last_ns) / 1e9
    cut = [a for a in history.attempts if _broke_off(a) and _falls_into(a, gone)]
    again = sum(a.payload for a in history.attempts if a.process == process and _is_repeat(a))
    client = ""
    if len(history.signs) == 1 and forgot:
        client, who, kind = forgot[0], forgot[0], "client restarted"
    elif len(history.signs) > 1 or any(remembers for _, remembers in later):
        who, kind = "the server", "server restarted"
    else:
        who, kind = "the process that wrote the capture", "restarted"
    text = f"{who} was started again: nothing passed for {away:.1f} s"
    text += f", then {times(len(back), 'client')} joined again"
    if cut:
        text += f"; broken off: {', '.join(_carrying(a) for a in cut)}"
    if again:
        text += f"; {mb(again)} of updates were sent again"
    r = max((a.round for a in history.attempts if a.start_ns <= gone.last_ns), default=0)
    seconds = history.seconds
    return Finding(
        kind=kind,
        client=client,
        round=r,
        start=seconds(gone.last_ns),
        end=seconds(gone.back_ns),
        text=text,
    )


def _return(history: History, client: str, join: Sign) -> Finding:
    signs, attempts = history.signs[client], history.by_client[client]
    before = [a for a in attempts if a.start_ns < join.time_ns]
    last = before[-1] if before else None
    after = next((a for a in attempts if a.start_ns >= join.time_ns), None)
    remembers = _remembers(history, client, join.time_ns)
    answered = max((a.answered_ns for a in before if a.answered_ns <= join.time_ns), default=0)
    cut = last is not None and _broke_off(last)
    last_ns = last.end_ns if last is not None and cut else max(answered, last.end_ns if last else 0)
    where = _place(last)
    if _was_asked_again(signs, join):
        kind, text = (
            "server restarted",
            f"the server lost {client}'s update, as one does that is killed, {where}",
        )
    elif remembers is None:
        kind, text = (
            "came back",
            f"{client} broke off {where}; whether its process or its link, cannot be told",
        )
    elif remembers:
        kind, text = "connection lost", f"{client} lost its connection {where}; its process went on"
    else:
        kind, text = "client restarted", f"{client} was killed or stopped {where}, and started again"
    if any(sign.kind == "going" and last_ns <= sign.time_ns <= join.time_ns for sign in signs):
        text += " (it had said that it goes)"
    text += f"; it joined again {(join.time_ns - (last_ns or join.time_ns)) / 1e9:.1f} s later"
    if after is not None and last is not None and cut and (after.round, after.up) == (last.round, last.up):
        text += f" and went on from {mb(after.skipped)}" if after.skipped else " and began anew"
    return Finding(
        kind=kind,
        client=client,
        round=0 if last is None else last.round,
        start=history.seconds(last_ns or join.time_ns),
        end=history.seconds(join.time_ns),
        text=text,
    )


def _remembers(history: History, client: str, since_ns: int) -> bool | None:
    """Whether a client that is back knows what it did; None where it had done nothing or never asked."""
    asked = next((s for s in history.signs[client] if s.kind == "pull" and s.time_ns >= since_ns), None)
    if asked is None:
        return None
    if asked.after_round:
        return True
    done = any(
        a.outcome in ("ACCEPTED", "DUPLICATE") and a.answered_ns <= asked.time_ns
        for a in history.by_client[client]
        if a.up and not a.apart
    )
    return False if done else None


def _was_asked_again(signs: list[Sign], join: Sign) -> bool:
    """Whether a server asked for an update that it had taken before the client joined again."""
    later = (s.kind for s in signs if s.time_ns >= join.time_ns and s.kind in ("join", "pull", "resend"))
    return list(itertools.islice(later, 3)) == ["join", "pull", "resend"]


def _place(last: Attempt | None) -> str:
    """What a client was doing when it was last heard of."""
    if last is None:
        return "before its first round"
    if _broke_off(last):
        return f"in its {_what(last)}"
    if not last.up:
        return f"while training round {last.round}"
    return f"after its update of round {last.round}"


def _carrying(attempt: Attempt) -> str:
    return f"{attempt.client}'s {_what(attempt)}"


def _what(attempt: Attempt) -> str:
    what = "upload" if attempt.up else "download"
    done = f"after {mb(attempt.skipped + attempt.payload)} of {mb(attempt.announced)}"
    return f"{what} of round {attempt.round} ({done})"


def _broke_off(attempt: Attempt) -> bool:
    return not attempt.is_whole and attempt.fault in ("", "TOO_FEW_BYTES") and not attempt.declined


def _falls_into(attempt: Attempt, gone: _Break) -> bool:
    return not attempt.answered_ns and attempt.start_ns <= gone.last_ns and attempt.end_ns <= gone.back_ns


def _is_repeat(attempt: Attempt) -> bool:
    return attempt.up and attempt.number > 1 and not attempt.skipped
