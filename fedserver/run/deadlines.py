"""How long an open round waits, and for whom. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

RETURN_S = 30.0
"""How long a round waits for clients that have left if it cannot do without them."""


@dataclass(frozen=True)
class Judgement:
    """For whom a round does not wait any longer, and when to look again."""

    excused: list[int]
    short: bool
    """Whether nobody can be expected any more, but too few updates are in."""
    stranded: bool
    """Whether there will be too few updates unless clients come back that have left."""
    lost: bool
    """Whether there will be too few updates whoever comes."""
    again_s: float
    """Infinite if only an answer can change anything."""


@dataclass(frozen=True)
class WaitingRule:
    """The rules of a run."""

    deadline: float | None
    quorum: float
    least: int = 0
    """Clients that must not have left."""

    def needed(self, drawn: int) -> int:
        """Updates without which nobody is left out."""
        return math.ceil(self.quorum * drawn)

    def judge(
        self,
        elapsed: float,
        drawn: int,
        updates: int,
        waiting: dict[int, float],
        leavers: Collection[int] = (),
        staying: float = math.inf,
    ) -> Judgement:
        """`waiting` says for each client that has not answered how long its lease runs still.

        `leavers` are those of them that have left; `staying` counts the clients of the run that have not.
        """
        over = self.deadline is not None and elapsed >= self.deadline
        expected = {i for i, left in waiting.items() if left > 0 and not over and i not in leavers}
        overdue = [i for i in waiting if i not in expected]
        needed = self.needed(drawn)
        enough = updates >= needed and staying >= self.least
        moments = [waiting[i] for i in expected]
        if self.deadline is not None and not over:
            moments.append(self.deadline - elapsed)
        coming = updates + sum(i not in leavers for i in waiting)
        return Judgement(
            excused=overdue if enough else [],
            short=bool(waiting) and not expected and not enough,
            stranded=coming < needed or staying < self.least,
            lost=updates + len(waiting) < needed,
            again_s=min(moments, default=math.inf),
        )
