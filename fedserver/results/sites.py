"""Follows what sites say of x, and writes it into the records of the rounds that x is of.

The x of round r is evaluated by clients as they begin round r + 1, and what they counted comes with their
updates: it is in the checkpoint of round r + 1, and then in the line of round r. So after a kill it is in one
of them. The x of the last round is asked for once more, by `final`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from common.errors import ConfigError
from common.events import Emit
from common.metrics.choice import Metrics
from common.metrics.pooled import evaluation_of, sites_record
from common.records.rounds import RoundRecord
from common.records.sites import SiteCounts
from common.tensors.layout import Flat
from fedserver.events.rounds import SitesEvaluated
from fedserver.members.members import Members
from fedserver.results.best import Best
from fedserver.results.trail import Trail
from fedserver.run.board import Board, Result
from fedserver.run.run import Run


class SiteTrail:
    """Of one run; does nothing in one whose server has data."""

    def __init__(self, run: Run, metrics: Metrics, trail: Trail, board: Board, emit: Emit) -> None:
        self._run = run
        self._trail = trail
        self._board = board
        self._emit = emit
        self._best = Best(run, emit)
        self._metrics = metrics
        self._before: RoundRecord | None = None
        """The record of the last closed round."""

    def require_evaluators(self, members: Members) -> None:
        """Raises where a best x is asked for that nobody will ever evaluate."""
        config = self._run.config
        if config.best is None or not config.has_task:
            return
        if not self._run.sites_evaluate:
            raise ConfigError(f"--best {config.best}: so many clients and classes are too many to evaluate x")
        held = {each.index: round(config.validation * each.examples) for each in members.in_order()}
        if not any(members.evaluated_on(i, n) for i, n in held.items()):
            raise ConfigError(
                f"--best {config.best}: no client evaluates x; give --validation, or clients --test"
            )

    async def catch_up(self, done: int) -> None:
        """Goes on after an earlier process; what it did not come to write is in checkpoints."""
        run = self._run
        if not run.sites_evaluate:
            return
        records = {record.round: record for record in run.run_dir.records()}
        for r, record in records.items():
            if record.sites is not None:
                self._board.sites = r, record.sites
        for r in run.checkpoints.rounds():
            self._before = records.get(r - 1)
            due = run.asks_sites_after(r - 1) and self._before is not None and self._before.sites is None
            if due and r in records:
                await self.follow(records[r], run.checkpoints.read(r).sites)
        self._before = records.get(done)

    async def follow(self, record: RoundRecord, counts: Mapping[str, SiteCounts]) -> None:
        """A round has closed; `counts` are of the x that it began with."""
        before, self._before = self._before, record
        if before is not None and before.sites is None and counts:
            r = before.round
            await self._take(before, counts, {}, lambda: self._run.checkpoints.read(r).flat)

    @property
    def lacks_the_last(self) -> bool:
        """Whether the x of the last round is not evaluated."""
        last = self._before
        return self._run.sites_evaluate and last is not None and last.sites is None

    async def end(self, flat: Flat, counts: Mapping[str, SiteCounts], absent: Mapping[str, str]) -> None:
        """The last x is evaluated by everybody who could be asked."""
        if self._before is not None and counts:
            await self._take(self._before, counts, absent, lambda: flat)

    async def _take(
        self,
        record: RoundRecord,
        counts: Mapping[str, SiteCounts],
        absent: Mapping[str, str],
        x: Callable[[], Flat],
    ) -> None:
        run, r = self._run, record.round
        names, judge = run.prepared.class_names, run.config.judge
        found = await asyncio.to_thread(sites_record, counts, names, self._metrics, judge, absent)
        await asyncio.to_thread(self._best.consider, r, found.metrics, x)
        together = evaluation_of(found)
        await self._trail.amend(record.evaluated_at(found, together))
        self._board.last = Result(r, together.accuracy, together.loss, None)
        self._board.sites = r, found
        worst = found.sites[found.worst].metrics.get(judge)
        self._emit(
            SitesEvaluated(
                round=r,
                rounds=run.config.rounds,
                sites=len(found.sites),
                examples=found.examples,
                metrics=found.metrics,
                worst=found.worst,
                judge=judge,
                worst_value=worst,
            )
        )
