"""S_svr as it is chosen round by round, done again: what the rule chooses, and what x and c are then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from common.errors import DataError
from common.server_step.adaptive import Choice
from common.server_step.entry import Answered, Answers, Change, chosen
from common.server_step.robust import Clip
from common.server_step.step import Closed, CSource
from common.server_step.updates import ReadUpdate
from common.tensors.layout import Flat, Layout
from fedwire.replay.captured_rounds import CapturedRound


@dataclass(frozen=True)
class Relaid:
    """A round's result, laid out for the S_svr of the next round."""

    layout: Layout
    closed: Closed
    variates: dict[str, Flat]
    """c_i of all clients, by name."""


class ChosenSvr:
    """Follows the choice from round 1 on. It is not known after a round that could not be replayed."""

    def __init__(self) -> None:
        self._round = 0
        """The last one that it has followed."""
        self._choice = Choice()
        self.changes = False
        """Whether S_svr is chosen round by round."""

    def lose_track(self) -> None:
        """What the server chose is not what the rule chooses, so that nobody knows what it chooses next."""
        self._round = -1

    def after(
        self,
        current: CapturedRound,
        closed: Closed,
        clients: list[str],
        read: Callable[[int, Clip | None], ReadUpdate],
        variates: dict[str, Flat],
    ) -> Relaid:
        """What the server goes on with. `clients` are those of the updates, and `variates` the c_i of all."""
        rules, layout = current.rules, current.layout
        if not rules.svr_budget:
            return Relaid(layout, closed, variates)
        self.changes = True
        if self._round != rules.round - 1:
            raise DataError(f"round {rules.round}: the next S_svr depends on rounds before the capture")

        def answer(i: int) -> Answered:
            clip = closed.clipped.get(i)
            update = read(i, clip)
            share = 1.0 if clip is None else clip.variate_share
            return Answered(update.values, update.steps, update.weight, update.client_weight, share)

        answers: Answers = lambda: map(answer, closed.counted)  # noqa: E731
        before = self._choice
        self._round, self._choice = rules.round, chosen(rules, layout, before, closed.layer_drift, answers)
        if self._choice.since == before.since:
            return Relaid(layout, closed, variates)
        after = layout.reducing(self._choice.since)
        change = Change(rules, layout, after, current.flat)
        own = {clients[i]: change.variate(answer(i)) for i in closed.counted}
        others = {name: change.absent(c_i) for name, c_i in variates.items() if name not in own}
        flat = change.flat(closed.flat, answers)
        return Relaid(after, replace(closed, flat=flat, c_source=CSource.FROM_VARIATES), own | others)
