"""Looks after an open round: who is missing, who is not waited for any longer, whether it can still close.

One task does it for all clients. It sleeps until an answer comes or something can have changed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from common.errors import RunError
from common.events import Emit
from fedserver.events.clients import ClientMissing, ClientsMissing
from fedserver.events.rounds import ClientExcused, QuorumLost, QuorumMissed
from fedserver.members.attendance import LEFT, NO_ANSWER, NO_PROGRESS, NO_SIGN
from fedserver.members.members import Members
from fedserver.members.presence import Presence
from fedserver.run.board import Board
from fedserver.run.deadlines import RETURN_S, Judgement, WaitingRule
from fedserver.run.round import Excused, Round

PAUSE_S = 0.05
"""Between looks, so that thousands of answers in a second do not make thousands of looks at thousands."""
PAUSES_PER_LOOK = 20
"""A look at ten thousand clients takes tens of milliseconds; looks get a twentieth of the time."""
REMIND_S = (30.0, 60.0, 120.0, 300.0)
"""When it is said again that a client is missing; later on, at twice the time before."""
AT_ONCE = 3
"""Clients that get a line each; if it is due for more at the same time, they share one."""


class Watch:
    """Says who is missing of those whom a round waits for, and says it again now and then."""

    def __init__(self, presence: Presence, came_from: Callable[[int], int | None]) -> None:
        """`came_from` counts the bytes that have come from a client, whole messages or not."""
        self._presence = presence
        self._came_from = came_from
        self._bytes: dict[int, int | None] = {}
        self._said_s: dict[int, float] = {}
        """How long a client had been silent when that was last said."""

    def look(self, awaited: Collection[int]) -> tuple[list[int], float]:
        """Of whom it is to be said now that they are missing, and in how many seconds to look again."""
        due, again_s = [], math.inf
        for i in awaited:
            silent, limit = self._presence.silent_s(i), self._presence.missing_after_s(i)
            if silent < self._said_s.get(i, 0.0):
                del self._said_s[i]  # It was back, and is silent again.
            if silent < limit / 2:
                self._bytes.pop(i, None)
                self._said_s.pop(i, None)
                again_s = min(again_s, limit / 2 - silent)
            elif silent <= limit:
                self._bytes.setdefault(i, self._came_from(i))
                again_s = min(again_s, limit - silent + PAUSE_S)
            elif self._moves(i):
                again_s = min(again_s, limit / 2)
            else:
                next_s = self._next_s(i)
                if silent >= next_s:
                    due.append(i)
                    self._said_s[i] = silent
                    self._presence.told(i)
                # Not only when it is to be said again: it may come back and go once more.
                again_s = min(again_s, max(self._next_s(i) - silent, PAUSE_S), self._presence.sign_s)
        return due, again_s

    def _moves(self, i: int) -> bool:
        """Whether bytes of a silent client have come: a message on a slow link takes its time."""
        if i not in self._bytes or i in self._said_s:
            return False
        before, now = self._bytes.pop(i), self._came_from(i)
        if now is None or now == before:
            return False
        self._presence.seen_to_move(i)
        return True

    def _next_s(self, i: int) -> float:
        """The silence at which to speak of a client."""
        if i not in self._said_s:
            # Its good-bye was a line already.
            return REMIND_S[0] if self._presence.is_stopped(i) else 0.0
        said_s = self._said_s[i]
        if self._presence.only_once(i):
            return math.inf
        return _next_reminder(said_s)


def _next_reminder(said_s: float) -> float:
    return next((step for step in REMIND_S if step > said_s), 2 * said_s)


async def wait_for_clients(members: Members) -> None:
    """Waits until the run can start, and says now and then how many are missing."""
    waited_s = 0.0
    while not members.complete.is_set():
        members.tell_who_is_here()
        step_s = _next_reminder(waited_s) - waited_s
        with suppress(TimeoutError):
            async with asyncio.timeout(step_s):
                await members.complete.wait()
        waited_s += step_s


async def gathered(members: Members, quiet_s: float) -> int:
    """How many clients there are where N is not given; says meanwhile how many are missing."""
    reminding = asyncio.create_task(wait_for_clients(members))
    try:
        return await members.gather(quiet_s)
    finally:
        reminding.cancel()


def require_enough(current: Round, rule: WaitingRule, reasons: set[str]) -> None:
    """Raises for a round that everybody has answered, but too few with an update."""
    few, updates, drawn = " | ".join(sorted(reasons)[:3]), len(current.updates()), len(current.answers)
    if not updates:
        raise RunError(f"round {current.number}: no client has an update to give: {few}")
    if updates < rule.needed(drawn) or current.gives_up:
        needed = f"--quorum {rule.quorum:g} needs {rule.needed(drawn)}"
        if rule.least:
            needed += f", and --min-clients {rule.least} clients that have not left"
        raise RunError(
            f"round {current.number}: {updates} of {drawn} clients have an update to give; {needed}: {few}; "
            "the rounds before it count, and the same command goes on from there"
        )


async def supervise(
    current: Round, board: Board, rule: WaitingRule, members: Members, watch: Watch, emit: Emit
) -> None:
    """Answers for those for whom a round does not wait any longer, until everybody has an answer."""
    supervision = _Supervision(current, board, rule, members, emit)
    while waiting := current.awaited():
        started = time.monotonic()
        again_s = supervision.judge(waiting)
        leavers = members.gone
        due, look_s = watch.look([i for i in current.awaited() if i not in leavers])
        supervision.tell_of_missing(due)
        again_s, took_s = min(again_s, look_s), time.monotonic() - started
        await board.news(None if math.isinf(again_s) else max(again_s, 0.0))
        await asyncio.sleep(max(PAUSE_S, PAUSES_PER_LOOK * took_s))


class _Supervision:
    """Of one round."""

    def __init__(self, current: Round, board: Board, rule: WaitingRule, members: Members, emit: Emit) -> None:
        self._current = current
        self._board = board
        self._rule = rule
        self._members = members
        self._emit = emit
        self._started = time.monotonic()
        self._drawn = len(current.answers)
        self._told_short = False
        self._stranded_since: float | None = None

    def judge(self, waiting: list[int]) -> float:
        """Excuses whom the rule does not wait for; returns in how many seconds to look again."""
        members, leases = self._members, self._members.leases
        updates, leavers = len(self._current.updates()), members.gone
        left = {i: leases.left(i) for i in waiting}
        elapsed, staying = time.monotonic() - self._started, len(members.by_index) - len(leavers)
        verdict = self._rule.judge(elapsed, self._drawn, updates, left, leavers, staying)
        for i in verdict.excused:
            if i in leavers:
                self._excuse(i, f"{LEFT}: {leavers[i]}")
                continue
            reason = NO_ANSWER if left[i] > 0 else NO_PROGRESS if leases.stalls(i) else NO_SIGN
            self._emit(ClientExcused(round=self._current.number, client=self._name(i), reason=reason))
            self._excuse(i, reason)
        if verdict.excused:
            return 0.0
        if verdict.short and not verdict.stranded and not self._told_short:
            self._told_short = True
            needed = self._rule.needed(self._drawn)
            self._emit(QuorumMissed(round=self._current.number, updates=updates, needed=needed))
        return min(verdict.again_s, self._patience_left(verdict, waiting))

    def _patience_left(self, verdict: Judgement, waiting: list[int]) -> float:
        """How much longer a round waits that cannot do without clients that have left; gives it up then."""
        leavers = self._members.gone
        if not verdict.stranded and not verdict.lost:
            self._stranded_since = None
            return math.inf
        now = time.monotonic()
        if self._stranded_since is None:
            self._stranded_since = now
            if not verdict.lost:
                names = [self._name(i) for i in waiting if i in leavers]
                needed = max(self._rule.needed(self._drawn), self._rule.least)
                self._emit(
                    QuorumLost(round=self._current.number, left=names, needed=needed, patience_s=RETURN_S)
                )
        left_s = self._stranded_since + RETURN_S - now
        if verdict.lost or left_s <= 0:
            self._current.gives_up = True
            for i in waiting:
                self._excuse(i, f"{LEFT}: {leavers[i]}" if i in leavers else "too few others have an update")
        return left_s

    def tell_of_missing(self, due: list[int]) -> None:
        """A line for each, or one for all."""
        r, updates, drawn = self._current.number, len(self._current.updates()), self._drawn
        names = [self._name(i) for i in due]
        if len(due) > AT_ONCE:
            self._emit(ClientsMissing(clients=names, round=r, updates=updates, drawn=drawn))
            return
        for i, name in zip(due, names, strict=True):
            silence = self._members.presence.silence(i)
            self._emit(ClientMissing(client=name, silence=silence, round=r, updates=updates, drawn=drawn))

    def _excuse(self, i: int, reason: str) -> None:
        self._board.answer(i, Excused(self._name(i), reason))

    def _name(self, i: int) -> str:
        return self._members.by_index[i].name
