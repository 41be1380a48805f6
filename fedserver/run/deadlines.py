"""How long an open round waits, and for whom."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from common.events import Emit
from fedserver.events.rounds import ClientExcused, QuorumMissed
from fedserver.members.members import Members
from fedserver.run.board import Board
from fedserver.run.round import Excused, Round


@dataclass(frozen=True)
class Judgement:
    """For whom a round does not wait any longer, and when to look again."""

    excused: list[int]
    short: bool
    """Whether nobody can be expected any more, but too few updates are in."""
    again_s: float
    """Infinite if only an answer can change anything."""


@dataclass(frozen=True)
class WaitingRule:
    """The rules of a run."""

    deadline: float | None
    quorum: float

    def needed(self, drawn: int) -> int:
        """Updates without which nobody is excused."""
        return math.ceil(self.quorum * drawn)

    def judge(self, elapsed: float, drawn: int, updates: int, waiting: dict[int, float]) -> Judgement:
        """`waiting` says for each client that has not answered how long its lease runs still."""
        over = self.deadline is not None and elapsed >= self.deadline
        expected = [i for i, left in waiting.items() if left > 0 and not over]
        overdue = [i for i in waiting if i not in expected]
        enough = updates >= self.needed(drawn)
        moments = [waiting[i] for i in expected]
        if self.deadline is not None and not over:
            moments.append(self.deadline - elapsed)
        return Judgement(
            excused=overdue if enough else [],
            short=bool(waiting) and not expected and not enough,
            again_s=min(moments, default=math.inf),
        )


async def supervise(current: Round, board: Board, rule: WaitingRule, members: Members, emit: Emit) -> None:
    """Answers for those for whom a round does not wait any longer, until everybody has an answer."""
    started, told, drawn = time.monotonic(), False, len(current.answers)
    while waiting := current.awaited():
        left = {i: members.leases.left(i) for i in waiting}
        updates = len(current.updates())
        verdict = rule.judge(time.monotonic() - started, drawn, updates, left)
        for i in verdict.excused:
            name = members.by_index[i].name
            reason = "no sign of life" if left[i] <= 0 else "no answer by the deadline"
            emit(ClientExcused(round=current.number, client=name, reason=reason))
            board.answer(i, Excused(name, reason))
        if verdict.excused:
            continue
        if verdict.short and not told:
            told = True
            emit(QuorumMissed(round=current.number, updates=updates, needed=rule.needed(drawn)))
        timeout = None if math.isinf(verdict.again_s) else verdict.again_s
        await board.answered(timeout)
