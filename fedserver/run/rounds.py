"""What a run does, from the preparation to the last evaluation.

Rounds are opened one after the other; the updates of each are folded in the order of client indices as they
come in. Evaluation goes on while the next round is trained.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from common import seeds
from common.errors import StateError
from common.events import Emit
from common.records.rounds import RoundRecord, Seconds
from common.server_step.rules import Rules
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat
from common.wire.chunks import Frame, chunk_frames
from fedserver.config import RunConfig
from fedserver.events.rounds import RoundClosed, RoundOpened
from fedserver.events.run import FinishedBefore
from fedserver.members.members import Members
from fedserver.members.seats import restored
from fedserver.members.watch import Watch
from fedserver.run.board import Board, Result
from fedserver.run.close import close, norms
from fedserver.run.deadlines import WaitingRule
from fedserver.run.eviction import without_evicted
from fedserver.run.fold import Fold, Folded
from fedserver.run.prepare import (
    Standing,
    prepare,
    require_same_model,
    resume,
    start,
    tell_of_idle_settings,
)
from fedserver.run.round import Answer, Round, Update
from fedserver.run.run import Run
from fedserver.run.supervision import gathered, require_enough, supervise, wait_for_clients
from fedserver.store.run_dir import RunDir
from fedserver.traffic.traffic import Traffic
from fedserver.worker.messages import Similarity
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
    ) -> None:
        self._config = config
        self._run_id = run_id
        self._run_dir = run_dir
        self._worker = worker
        self._members = members
        self._board = board
        self._traffic = traffic
        self._emit = emit
        self._watch = Watch(members.presence, self._came_from)

    def _came_from(self, i: int) -> int | None:
        return self._traffic.came_from(self._members.by_index[i].name)

    async def run(self) -> None:
        """Everything from preparation, or from where an earlier process was, to the last evaluation."""
        run, standing = await self._prepare()
        await wait_for_clients(self._members)
        if self._run_dir.previous is None:
            self._run_dir.write_config(run.record(self._members.in_order(), self._members.example_limit))
        try:
            final = await self._all_rounds(run, standing)
            if not self._run_dir.finished():
                sets = await self._worker.conformal(run.model(final), run.config.seed)
                self._run_dir.write_conformal(sets)
        except (OSError, StateError):
            # The run is not over: it goes on here, perhaps from an earlier checkpoint, in another process.
            raise
        except Exception as error:
            await self._board.end(str(error))
            raise
        await self._board.end("")

    async def _prepare(self) -> tuple[Run, Standing]:
        """The run, open for clients, and where it stands."""
        config, previous = self._config, self._run_dir.previous
        if previous is None and config.gather is not None:
            config = replace(config, num_clients=await gathered(self._members, config.gather))
        run = await prepare(config, self._run_id, self._run_dir, self._worker)
        tell_of_idle_settings(run, self._emit)
        if previous is not None:
            require_same_model(run, previous.fingerprint)
            seats = restored(previous.clients, run.prepared.shards)
            self._members.restore(seats, previous.example_limit)
        standing = start(run) if previous is None else resume(run, self._emit)
        self._board.open(run)
        self._members.open(run.prepared.shards, run.prepared.class_names)
        if previous is not None:
            await self._catch_up(run, standing.round)
        return run, standing

    async def _catch_up(self, run: Run, done: int) -> None:
        """Writes the records that an earlier process did not come to."""
        recorded = self._run_dir.go_back(done, self._emit)
        for record in self._run_dir.records():
            self._board.attendance.add(record)
        for r in run.checkpoints.rounds():
            if r <= done and r not in recorded:
                checkpoint = run.checkpoints.read(r)
                await self._report(run, checkpoint.flat, checkpoint.closing)
        for record in self._run_dir.records():
            if record.accuracy is not None:
                self._board.last = Result(record.round, record.accuracy, record.loss)
        if self._run_dir.finished():
            self._tell_of_the_end(done)

    def _tell_of_the_end(self, done: int) -> None:
        last, rounds, folder = self._board.last, self._config.rounds, str(self._run_dir.path)
        accuracy = None if last is None else last.accuracy
        self._emit(FinishedBefore(round=done, rounds=rounds, accuracy=accuracy, run_dir=folder))

    async def _all_rounds(self, run: Run, standing: Standing) -> Flat:
        """The rounds that are left, each evaluated while the next one is trained; returns the final x."""
        evaluation: asyncio.Task[None] | None = None
        try:
            for r in range(standing.round + 1, run.config.rounds + 1):
                standing, record = await self._train(run, r, standing)
                if evaluation is not None:
                    await evaluation
                evaluation = asyncio.create_task(self._report(run, standing.flat, record))
            if evaluation is not None:
                await evaluation
        finally:
            if evaluation is not None:
                evaluation.cancel()
                await asyncio.gather(evaluation, return_exceptions=True)
        return standing.flat

    async def _train(self, run: Run, r: int, standing: Standing) -> tuple[Standing, RoundRecord]:
        """Opens a round, folds its updates until every client has answered, and closes it."""
        started = time.monotonic()
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
        )
        cka = await self._similarity(run, r, folded) if run.config.cka and run.evaluates(r) else None
        names = {i: member.name for i, member in self._members.by_index.items()}
        record = replace(
            folded.record(sent, seconds, cka, norms(run, folded.closed.flat, names)),
            clients=tuple(names[i] for i in folded.counted),
            absent=current.absent(),
        )
        return await asyncio.to_thread(close, run, folded, record, detail, standing), record

    async def _similarity(self, run: Run, r: int, folded: Folded) -> Similarity:
        return await self._worker.cka([run.spool.path(r, i) for i in folded.counted], run.config.cka)

    async def _open(
        self, run: Run, rules: Rules, drawn: list[int], standing: Standing
    ) -> tuple[Round, dict[int, asyncio.Future[Answer]]]:
        broadcast, frames = await asyncio.to_thread(encode, run, rules.round, standing.flat)
        current = Round(UpdateReader(rules, run.layout, broadcast), frames, drawn, standing.c_source)
        self._traffic.open_round(rules.round)
        self._members.leases.round_opens(drawn)
        coming = await self._board.open_round(current)
        self._emit(RoundOpened(round=rules.round, clients=len(coming)))
        return current, coming

    async def _fold(
        self, run: Run, current: Round, coming: dict[int, asyncio.Future[Answer]], standing: Standing
    ) -> Folded:
        """Folds updates in the order of client indices, as they come in, and takes the step."""
        fold, reasons = Fold(run, current, standing.h, standing.evicted), set()
        config = run.config
        rule = WaitingRule(config.deadline, config.quorum, config.min_clients or 0)
        supervision = asyncio.create_task(
            supervise(current, self._board, rule, self._members, self._watch, self._emit)
        )
        try:
            for i, answer in coming.items():
                found = await answer
                if isinstance(found, Update):
                    await asyncio.to_thread(fold.take, i, found)
                else:
                    reasons.add(found.reason)
        finally:
            supervision.cancel()
        require_enough(current, rule, reasons)
        return await asyncio.to_thread(fold.close, standing.flat, self._emit)

    async def _report(self, run: Run, flat: Flat, record: RoundRecord) -> None:
        """Evaluates x where that is due and writes the round's record."""
        r, started = record.round, time.monotonic()
        try:
            if run.evaluates(r):
                found = await self._worker.evaluate(run.model(flat))
                self._board.last = Result(r, found.accuracy, found.loss)
                record = record.evaluated(found, time.monotonic() - started)
        finally:
            # A run that is stopped meanwhile still has this round, only without its evaluation.
            self._run_dir.append_round(record)
            self._board.attendance.add(record)
        sent = record.bytes
        self._emit(
            RoundClosed(
                round=r,
                rounds=run.config.rounds,
                accuracy=record.accuracy,
                validation_accuracy=record.validation_accuracy,
                train_loss=record.train_loss,
                updates=record.updates,
                down_bytes=sent.down.total,
                up_bytes=sent.up.total,
                seconds=record.seconds.round,
            )
        )


def encode(run: Run, r: int, flat: Flat) -> tuple[Flat, list[Frame]]:
    """x and c as clients will see them, and the frames that carry them."""
    broadcast = flat if run.down.plain else flat.copy()
    random = seeds.stream(run.config.seed, seeds.CODEC_DOWN, r)
    raw = run.down.encode_in_place(broadcast, random, None, None)
    return broadcast, list(chunk_frames(run.down.encoded, raw))
