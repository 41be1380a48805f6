"""A round at the server, in memory: updates in, the next x and c out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.server_step.robust import Clip
from common.server_step.rules import Rules
from common.server_step.step import Closed, ServerStep
from common.server_step.updates import ReadUpdate, UpdateReader
from common.tensors.layout import Flat, Layout


class ServerRound:
    """Both halves of a round, and what came in so far."""

    def __init__(self, rules: Rules, layout: Layout, broadcast: Flat, **state: Any) -> None:
        """`state` is for the step."""
        self.reader = UpdateReader(rules, layout, broadcast)
        self.step = ServerStep(rules, layout, broadcast, **state)
        self.taken_back: dict[int, Flat] = {}
        """What is left of updates that are too large."""
        self._updates: dict[int, ReadUpdate] = {}

    def add(
        self,
        i: int,
        values: Flat,
        c_i: Flat | None = None,
        steps: int = 1,
        examples: int = 1,
        *,
        checked: bool = True,
    ) -> None:
        """Takes an update in; `checked` as the server does, or just as it is."""
        follows = checked and self.reader.require_following(values, c_i, steps)
        self._updates[i] = self.reader.read(values, c_i, steps, examples, follows=follows)
        self.step.add(i, self._updates[i])

    def close(self, absent: Sequence[Flat | None] = ()) -> Closed:
        """The next x and c."""
        return self.step.close(again=self._again, absent=absent)

    def _again(self, i: int, clip: Clip | None) -> ReadUpdate:
        if clip is None:
            return self._updates[i]
        found = self.reader.taken_back(self._updates[i], clip)
        self.taken_back[i] = found.values
        return found
