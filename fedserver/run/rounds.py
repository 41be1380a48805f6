"""What a run does, from the preparation to the last evaluation.

Rounds are opened one after the other; the updates of each are folded in the order of client indices as they
come in. Evaluation goes on while the next round is trained.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from common.errors import DivergedError, StateError
from common.events import Emit
from common.metrics.choice import Metrics
from common.records.rounds import RoundRecord, Seconds
from common.records.sites import SiteCounts
from common.server_step.rules import Rules
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat
from fedserver.config import RunConfig
from fedserver.events.rounds import RoundOpened, RunDiverged
from fedserver.members.members import Members
from fedserver.members.seats import restored
from fedserver.members.watch import Watch
from fedserver.rehearsal.canary import Canary
from fedserver.rehearsal.first_variates import FirstVariates
from fedserver.resources import give_back
from fedserver.results.final import FinalEvaluation
from fedserver.results.similarity import compared
from fedserver.results.sites import SiteTrail
from fedserver.results.summary import tell_of_an_earlier_end
from fedserver.results.trail import Trail
from fedserver.run.board import Board
from fedserver.run.close import Tidying, close, norms
from fedserver.run.deadlines import WaitingRule
from fedserver.run.eviction import without_evicted
from fedserver.run.fold import Fold, Folded, tell_of_another_svr
from fedserver.run.prepare import (
    Standing,
    prepare,
    require_same_model,
    resume,
    start,
    tell_of_idle_settings,
)
from fedserver.run.round import Answer, Encoded, Round, Update, encode
from fedserver.run.run import Run
from fedserver.run.supervision import gathered, require_enough, supervise, wait_for_clients
from fedserver.store.run_dir import RunDir
from fedserver.traffic.traffic import Traffic
from fedserver.worker.process import TorchWorker


class Rounds:
    """Drives one run."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        run_dir: RunDir,
        worker: TorchWorker,
        members: Members,
        board: Board,
        traffic: Traffic,
        emit: Emit,
        *,
        canary: bool = False,
        in_process: bool = False,
    ) -> None:
        """`canary`: rehearses before round 1. `in_process`: clients live and end with this process."""
        self._config = config
        self._run_id = run_id
        self._run_dir = run_dir
        self._worker = worker
        self._members = members
        self._board = board
        self._traffic = traffic
        self._emit = emit
        self._in_process = in_process
        self._standing: Standing | None = None
        """Between two rounds; held nowhere else, so that x is gone from memory when the next one is there."""
        self._ahead: Encoded | None = None
        self._watch = Watch(members.presence, self._came_from)
        self._canary = Canary(members, board, self._watch, emit) if canary else None
        self._first_variates = FirstVariates(members, board, self._watch, traffic, emit)

    def _came_from(self, i: int) -> int | None:
        return self._traffic.came_from(self._members.by_index[i].name)

    async def run(self) -> None:
        """Everything from preparation, or from where an earlier process was, to the last evaluation."""
        metrics = Metrics.load(self._config.metrics, len(self._config.classes))
        run = await self._prepare()
        trail = Trail(run, self._worker, self._board, self._emit)
        sites = SiteTrail(run, metrics, trail, self._board, self._emit)
        if self._run_dir.previous is not None:
            await trail.catch_up(self._stands().round)
            await sites.catch_up(self._stands().round)
            if self._run_dir.finished():
                tell_of_an_earlier_end(self._board, run, self._stands().round, self._emit)
        if not run.evaluates_before_the_end(self._stands().round):
            await self._worker.rest()
        await wait_for_clients(self._members)
        if self._run_dir.previous is None:
            sites.require_evaluators(self._members)
            self._run_dir.write_config(run.record(self._members.in_order(), self._members.example_limit))
        try:
            if self._canary is not None and not self._stands().round:
                await self._canary.fly(run, self._stands())
            if self._config.warm_variates and not run.variates.counted:
                self._standing = await self._first_variates.asked_for(run, self._stands())
            final = await self._all_rounds(run, trail, sites)
            if not self._run_dir.finished():
                members = self._members.in_order()
                self._run_dir.write_conformal(await trail.prediction_sets(final, members))
        except (OSError, StateError):
            # The run is not over: it goes on here, perhaps from an earlier checkpoint, in another process.
            raise
        except Exception as error:
            if isinstance(error, DivergedError):
                self._emit(RunDiverged(round=self._board.number, reason=str(error)))
            await self._board.end(str(error))
            raise
        await self._board.end("")

    async def _prepare(self) -> Run:
        """The run, open for clients."""
        config, previous = self._config, self._run_dir.previous
        if previous is None and config.gather is not None:
            config = replace(config, num_clients=await gathered(self._members, config.gather))
        run, x0 = await prepare(config, self._run_id, self._run_dir, self._worker, self._in_process)
        tell_of_idle_settings(run, self._emit)
        if previous is not None:
            require_same_model(run, previous)
            seats = restored(previous.clients, run.prepared.shards)
            self._members.restore(seats, previous.example_limit)
        run, self._standing = (run, start(run, x0)) if previous is None else resume(run, x0, self._emit)
        self._board.open(run)
        self._members.open(run.prepared.shards, run.prepared.class_names)
        return run

    async def _all_rounds(self, run: Run, trail: Trail, sites: SiteTrail) -> Flat:
        """The rounds that are left, each evaluated while the next one is trained; returns the final x."""
        tidying = Tidying(run)
        try:
            for r in range(self._stands().round + 1, run.config.rounds + 1):
                run, record, evaluations = await self._train(run, r, tidying)
                await trail.follow(self._stands().flat, record)
                await sites.follow(record, evaluations)
            await trail.end()
            if sites.lacks_the_last:
                last = FinalEvaluation(run, self._members, self._board, self._traffic, self._emit)
                await sites.end(self._stands().flat, *await last.counts(self._stands().flat))
            await tidying.end()
        finally:
            await trail.stop()
            with suppress(OSError):  # What ended the run is to be told, and not this.
                await tidying.end()
        return self._stands().flat

    def _stands(self) -> Standing:
        assert self._standing is not None, "nobody asks while a round is under way"
        return self._standing

    async def _train(
        self, run: Run, r: int, tidying: Tidying
    ) -> tuple[Run, RoundRecord, Mapping[str, SiteCounts]]:
        """Opens a round, folds its updates until every client has answered, and closes it.

        Returns the run as it goes on, the round's record, and what clients counted of the first x of it.
        """
        started = time.monotonic()
        standing, self._standing = self._stands(), None
        # Rules and clients belong together: nobody can take a seat between the two.
        members = self._members
        num_clients = run.config.num_clients - len(members.evicted_before(r))
        examples = members.total_examples(r)
        rules = run.rules(r, examples, members.example_limit, num_clients, standing.strikes)
        drawn = members.drawn(run.config.seed, r, run.config.clients_per_round)
        standing = without_evicted(run, standing, members, rules).under(rules, run.layout)
        current, coming = await self._open(run, rules, drawn, standing)
        folded = await self._fold(run, current, coming, standing)
        sent, detail = self._traffic.close_round()
        seconds = Seconds(
            round=time.monotonic() - started,
            train=max(update.train_seconds for update in folded.counted.values()),
            step=folded.seconds,
        )
        cka = await compared(run, r, folded.counted, self._worker)
        names = {i: member.name for i, member in self._members.by_index.items()}
        record = replace(
            folded.record(sent, seconds, cka, norms(folded.after, folded.closed.flat, names)),
            clients=tuple(names[i] for i in folded.counted),
            absent=current.absent(),
        )
        standing = replace(standing, flat=folded.closed.flat)
        await tidying.done()
        standing, written = await run.aside(close, folded, record, detail, standing)
        # Nobody sees the next broadcast before this round counts, but it can be made meanwhile.
        ahead = self._made_ahead(folded.after, r + 1, folded.closed.flat)
        _, self._ahead = await asyncio.gather(run.sync(written), ahead)
        self._standing = standing
        tell_of_another_svr(folded, self._emit)
        tidying.begin(folded.after, standing)
        return folded.after, record, folded.evaluations

    async def _made_ahead(self, run: Run, r: int, flat: Flat) -> Encoded | None:
        return await run.aside(encode, run, r, flat) if r <= run.config.rounds else None

    async def _open(
        self, run: Run, rules: Rules, drawn: list[int], standing: Standing
    ) -> tuple[Round, dict[int, asyncio.Future[Answer]]]:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.flat is not standing.flat:
            ahead = await run.aside(encode, run, rules.round, standing.flat)
        reader = UpdateReader(rules, run.layout, ahead.broadcast)
        current = Round(reader, ahead.bundles, drawn, standing.c_source, ahead.raw)
        self._board.go_on_with(run)
        self._traffic.open_round(rules.round)
        self._members.leases.round_opens(drawn)
        coming = await self._board.open_round(current)
        self._emit(RoundOpened(round=rules.round, clients=len(coming)))
        return current, coming

    async def _fold(
        self, run: Run, current: Round, coming: dict[int, asyncio.Future[Answer]], standing: Standing
    ) -> Folded:
        """Folds updates in the order of client indices, as they come in, and takes the step."""
        fold, reasons, config = Fold(run, current, standing.h, standing.evicted), set(), run.config
        rule = WaitingRule(config.deadline, config.quorum, config.min_clients or 0)
        supervision = asyncio.create_task(
            supervise(current, self._board, rule, self._members, self._watch, self._emit)
        )
        try:
            for i, answer in coming.items():
                found = await answer
                if isinstance(found, Update):
                    await run.aside(fold.take, i, found)
                else:
                    reasons.add(found.reason)
        finally:
            supervision.cancel()
        require_enough(current, rule, reasons)
        current.release()
        await run.aside(give_back, len(coming))
        return await run.aside(fold.close, standing.flat, standing.choice, self._emit)
