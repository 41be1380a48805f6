"""Looks after an open round: who is missing, who is not waited for any longer, whether it can still close.

One task does it for all clients. It sleeps until an answer comes or something can have changed.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

from common.errors import DivergedError, RunError
from common.events import Emit
from fedserver.events.clients import ClientMissing, ClientsMissing
from fedserver.events.rounds import ClientExcused, QuorumLost, QuorumMissed, RoundHeldUp
from fedserver.members.attendance import LEFT, NO_ANSWER, NO_PROGRESS, NO_SIGN
from fedserver.members.members import Members
from fedserver.members.watch import Watch, next_reminder
from fedserver.run.board import Board
from fedserver.run.deadlines import RETURN_S, Judgement, WaitingRule
from fedserver.run.round import Excused, Round

PAUSE_S = 0.05
"""Between looks, so that thousands of answers in a second do not make thousands of looks at thousands."""
PAUSES_PER_LOOK = 20
"""A look at ten thousand clients takes tens of milliseconds; looks get a twentieth of the time."""
LONG_S = 60.0
"""A round has waited for long if it is older than this, and twice as old as at its last update."""
FIRST_UPDATE_S = 600.0
"""Or this old, if it has no update."""
AT_ONCE = 3
"""Clients that get a line each; if it is due for more at the same time, they share one."""


async def wait_for_clients(members: Members) -> None:
    """Waits until the run can start, and says now and then how many are missing."""
    waited_s = 0.0
    while not members.complete.is_set():
        members.tell_who_is_here()
        step_s = next_reminder(waited_s) - waited_s
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
    kind = DivergedError if current.has_diverged(rule.needed(drawn)) else RunError
    if not updates:
        raise kind(f"round {current.number}: no client has an update to give: {few}")
    if updates < rule.needed(drawn) or current.gives_up:
        needed = f"--quorum {rule.quorum:g} needs {rule.needed(drawn)}"
        if rule.least:
            needed += f", and --min-clients {rule.least} clients that have not left"
        raise kind(
            f"round {current.number}: {updates} of {drawn} clients have an update to give; {needed}: {few}; "
            "the rounds before it count, and the same command goes on from there"
        )


async def supervise(
    current: Round, board: Board, rule: WaitingRule, members: Members, watch: Watch, emit: Emit
) -> None:
    """Answers for those for whom a round does not wait any longer, until everybody has an answer.

    What keeps it from doing so ends the round: nobody else closes one in which somebody is missing.
    """
    try:
        await _look_after(current, board, members, watch, _Supervision(current, board, rule, members, emit))
    except Exception as error:
        for i in current.awaited():
            board.fail(i, error)


async def _look_after(
    current: Round, board: Board, members: Members, watch: Watch, supervision: _Supervision
) -> None:
    while waiting := current.awaited():
        started = time.monotonic()
        again_s = supervision.judge(waiting)
        leavers = members.gone
        expected = [i for i in current.awaited() if i not in leavers]
        supervision.tell_of_stragglers(expected)
        due, look_s = watch.look(expected)
        supervision.tell_of_missing(due)
        again_s, took_s = min(again_s, look_s, supervision.straggler_s), time.monotonic() - started
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
        self._updates, self._patient_s = 0, FIRST_UPDATE_S
        """Updates that were in, and how old the round may be then before it is said whom it waits for."""
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

    @property
    def straggler_s(self) -> float:
        """Seconds until it may be said whom the round waits for."""
        return self._started + self._patient_s - time.monotonic()

    def tell_of_stragglers(self, expected: list[int]) -> None:
        """Says whom a round waits for that has waited for long, though they give signs of life."""
        elapsed, updates = time.monotonic() - self._started, len(self._current.updates())
        if updates > self._updates:
            self._updates, self._patient_s = updates, max(LONG_S, 2 * elapsed)
        if elapsed < self._patient_s:
            return
        self._patient_s = 2 * elapsed
        r, presence = self._current.number, self._members.presence
        there = [i for i in expected if not presence.is_missing(i)]
        doing = [f"{self._name(i)} ({presence.works(i, r)})" for i in there]
        if doing:
            self._emit(
                RoundHeldUp(round=r, clients=doing, updates=updates, drawn=self._drawn, seconds=elapsed)
            )

    def _excuse(self, i: int, reason: str) -> None:
        self._board.answer(i, Excused(self._name(i), reason))

    def _name(self, i: int) -> str:
        return self._members.by_index[i].name
