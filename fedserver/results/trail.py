"""Evaluates x beside the rounds, and writes their records in the order of rounds.

A round's line is written once its x is evaluated, while the next round is trained; the round after that one
waits for it. With --eval-async no round waits: its line is written when it closes, and the newest x is
evaluated whenever the worker has time. That line is then written anew; rounds that are over before it is
their turn stay without. The last x is always evaluated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from common.atomic import sync
from common.events import Emit
from common.records.conformal import ConformalRecord
from common.records.rounds import RoundRecord
from common.tensors.layout import Flat
from fedserver.events.rounds import RoundClosed, RoundEvaluated
from fedserver.members.seats import Member
from fedserver.results.best import Best, of_test_set
from fedserver.run.board import Board, Result
from fedserver.run.run import Run
from fedserver.worker.process import TorchWorker


class Trail:
    """Follows the rounds of a run."""

    def __init__(self, run: Run, worker: TorchWorker, board: Board, emit: Emit) -> None:
        self._run = run
        self._worker = worker
        self._board = board
        self._emit = emit
        self._best = Best(run, emit)
        self._recording: asyncio.Task[None] | None = None
        """Of the last round that has closed."""
        self._evaluating: asyncio.Task[None] | None = None
        """With --eval-async: goes on for as long as there is a newer x."""
        self._newest: tuple[Flat, RoundRecord] | None = None
        self._file = asyncio.Lock()
        """Held by who writes rounds.jsonl: a line is added and another one written anew at the same time."""

    async def follow(self, flat: Flat, record: RoundRecord) -> None:
        """A round has closed. Waits for the round before it, as far as anything waits."""
        if self._recording is not None:
            await self._recording
        if not self._run.config.eval_async:
            self._recording = asyncio.create_task(self._report(flat, record))
            return
        self._recording = asyncio.create_task(self._record(record))
        if self._run.evaluates(record.round):
            self._newest = flat, record
            if self._evaluating is None or self._evaluating.done():
                await self._evaluations()
                self._evaluating = asyncio.create_task(self._evaluate_newest())

    async def end(self) -> None:
        """Nothing that is due is missing any more, and all of it is on disk."""
        if self._recording is not None:
            await self._recording
        await self._evaluations()
        await asyncio.to_thread(sync, self._run.run_dir.lines)

    async def prediction_sets(self, final: Flat, members: Iterable[Member]) -> ConformalRecord:
        """Conformal ones of the final x, where there are data to calibrate them on."""
        run = self._run
        if not run.evaluates(run.config.rounds):
            return ConformalRecord(sets=())
        shards = [member.index for member in members if member.shard is not None]
        return await self._worker.conformal(run.model(final), shards)

    async def _evaluations(self) -> None:
        """Waits for those that go on; raises what went wrong."""
        if self._evaluating is not None:
            await self._evaluating

    async def stop(self) -> None:
        """Lets go of what is not done."""
        tasks = [task for task in (self._recording, self._evaluating) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def catch_up(self, done: int) -> None:
        """Makes up for what an earlier process did not come to, as far as there are checkpoints of it."""
        run, run_dir = self._run, self._run.run_dir
        found = {record.round: record for record in run_dir.records()}
        for record in found.values():
            self._board.attendance.add(record)
        for r in run.checkpoints.rounds():
            if r <= done and r not in found:
                checkpoint = run.checkpoints.read(r)
                await self._report(checkpoint.flat, checkpoint.closing)
            elif r <= done and found[r].accuracy is None and self._must_have(r):
                await self._amend(await self._evaluated(run.checkpoints.read(r).flat, found[r]))
        for record in run_dir.records():
            if record.accuracy is not None:
                took_s = record.seconds.evaluate
                self._board.last = Result(record.round, record.accuracy, record.loss, took_s)

    def _must_have(self, r: int) -> bool:
        """Whether the round must not stay without an evaluation."""
        config = self._run.config
        return self._run.evaluates(r) and (r == config.rounds or not config.eval_async)

    async def _report(self, flat: Flat, record: RoundRecord) -> None:
        """Evaluates x where that is due and writes the round's record."""
        await asyncio.sleep(0)  # The next broadcast comes first.
        try:
            if self._run.evaluates(record.round):
                record = await self._evaluated(flat, record)
        except BaseException:
            # A run that is stopped meanwhile still has this round, only without its evaluation.
            await self._write(record)
            raise
        await self._record(record)

    async def _record(self, record: RoundRecord) -> None:
        await self._write(record)
        sent = record.bytes
        self._emit(
            RoundClosed(
                round=record.round,
                rounds=self._run.config.rounds,
                accuracy=record.accuracy,
                validation_accuracy=record.validation_accuracy,
                train_loss=record.train_loss,
                updates=record.updates,
                down_bytes=sent.down.total,
                up_bytes=sent.up.total,
                seconds=record.seconds.round,
            )
        )

    async def _write(self, record: RoundRecord) -> None:
        self._board.attendance.add(record)
        async with self._file:
            self._run.run_dir.append_round(record)

    async def _evaluate_newest(self) -> None:
        while self._newest is not None:
            (flat, record), self._newest = self._newest, None
            await self._amend(await self._evaluated(flat, record))

    async def _evaluated(self, flat: Flat, record: RoundRecord) -> RoundRecord:
        started = time.monotonic()
        found = await self._worker.evaluate(self._run.model(flat))
        seconds = time.monotonic() - started
        if self._best.wanted:
            await asyncio.to_thread(self._best.consider, record.round, of_test_set(found), lambda: flat)
        self._board.last = Result(record.round, found.accuracy, found.loss, seconds)
        return record.evaluated(found, seconds)

    async def amend(self, record: RoundRecord) -> None:
        """Writes a line anew that is there without an evaluation."""
        self._board.attendance.add_evaluation(record)
        async with self._file:
            await asyncio.to_thread(self._run.run_dir.amend_round, record)

    async def _amend(self, record: RoundRecord) -> None:
        """The same, and says so."""
        await self.amend(record)
        assert record.accuracy is not None, "it is evaluated"
        self._emit(
            RoundEvaluated(
                round=record.round,
                rounds=self._run.config.rounds,
                accuracy=record.accuracy,
                seconds=record.seconds.evaluate or 0.0,
            )
        )
