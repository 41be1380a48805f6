"""Chooses S_svr anew after a round, and has c and every c_i ready for it: `--svr auto`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from common.server_step.adaptive import Choice
from common.server_step.entry import Answered, Change, chosen
from common.server_step.step import Closed, CSource
from common.server_step.updates import UpdateReader
from fedserver.run.round import Update
from fedserver.run.run import Run


@dataclass(frozen=True)
class Adaptation:
    """The updates of a round that has closed, for the choice that follows from them."""

    run: Run
    reader: UpdateReader
    updates: dict[int, Update]
    """By client index."""

    def __call__(self, closed: Closed, choice: Choice) -> tuple[Run, Closed, Choice]:
        """The run with the S_svr of the next round, x and c for it, and how it was chosen."""
        run, rules = self.run, self.reader.rules
        new = chosen(rules, run.layout, choice, closed.layer_drift, lambda: self._answers(closed))
        if new.since == choice.since:
            return run, closed, new
        after = run.layout.reducing(new.since)
        change = Change(rules, run.layout, after, self.reader.broadcast)
        flat = change.flat(closed.flat, lambda: self._answers(closed))
        next_run = run.reducing(new)
        for i in closed.counted:
            next_run.variates.stage_variate(i, rules.round, change.variate(self._answer(closed, i)))
        next_run.variates.measure_all_but(closed.counted)
        # c is not what the move of x tells a client that had no variate before.
        return next_run, replace(closed, flat=flat, c_source=CSource.FROM_VARIATES), new

    def _answers(self, closed: Closed) -> Iterator[Answered]:
        return (self._answer(closed, i) for i in closed.counted)

    def _answer(self, closed: Closed, i: int) -> Answered:
        update, clip, r = self.updates[i], closed.clipped.get(i), self.reader.rules.round
        read = self.reader.read(
            self.run.spool.values(r, i), None, update.steps, update.examples, follows=update.follows
        )
        return Answered(
            values=read.values,
            steps=read.steps,
            weight=read.weight if clip is None else read.weight * clip.share,
            client_weight=read.client_weight,
            variate_share=1.0 if clip is None else clip.variate_share,
        )
