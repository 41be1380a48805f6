"""How long an open round waits, and for whom."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from fedserver.run.leases import Leases
from fedserver.run.round import Answer, OpenRound


@dataclass(frozen=True)
class Verdict:
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

    def judge(self, elapsed: float, drawn: int, updates: int, waiting: dict[int, float]) -> Verdict:
        """`waiting` says for each client that has not answered how long its lease runs still."""
        over = self.deadline is not None and elapsed >= self.deadline
        expected = [i for i, left in waiting.items() if left > 0 and not over]
        overdue = [i for i in waiting if i not in expected]
        enough = updates >= self.needed(drawn)
        moments = [waiting[i] for i in expected]
        if self.deadline is not None and not over:
            moments.append(self.deadline - elapsed)
        return Verdict(
            excused=overdue if enough else [],
            short=bool(waiting) and not expected and not enough,
            again_s=min(moments, default=math.inf),
        )


async def supervise(
    current: OpenRound,
    waiting_rule: WaitingRule,
    leases: Leases,
    name: Callable[[int], str],
    say: Callable[[str], None],
) -> None:
    """Answers for those for whom a round does not wait any longer, until everybody has an answer."""
    started, told, drawn = time.monotonic(), False, len(current.answers)
    while waiting := [i for i, answer in current.answers.items() if not answer.done()]:
        elapsed, updates = time.monotonic() - started, len(current.updates())
        verdict = waiting_rule.judge(elapsed, drawn, updates, {i: leases.left(i) for i in waiting})
        for i in verdict.excused:
            reason = "no sign of life" if leases.left(i) <= 0 else "no answer by the deadline"
            say(f"round {current.number}: goes on without {name(i)}: {reason}")
            current.answers[i].set_result(Answer(name(i), 0, 0, 0, 0.0, declined=reason))
        if verdict.excused:
            continue
        if verdict.short and not told:
            told = True
            say(
                f"round {current.number}: {updates} updates and nobody else to expect; "
                f"waiting until there are {waiting_rule.needed(drawn)}"
            )
        timeout = None if math.isinf(verdict.again_s) else verdict.again_s
        coming = [current.answers[i] for i in waiting]
        await asyncio.wait(coming, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
