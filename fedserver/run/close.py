"""Closes a round: the new x and c, and the c_i that went into them, on disk; then tidies up after it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.records.rounds import Norms, RoundRecord
from common.records.traffic import RoundTraffic
from common.server_step.robust import strikes_after
from common.tensors.layout import Flat, Purpose, norm
from fedserver.run.fold import Folded
from fedserver.run.prepare import Standing
from fedserver.run.run import Run
from fedserver.store.checkpoints import Checkpoint


def close(
    folded: Folded, record: RoundRecord, detail: RoundTraffic, before: Standing
) -> tuple[Standing, list[Path]]:
    """Writes all that makes the round count; it does when the files and folders that are returned are synced.

    The checkpoint is the moment; what follows can be made from it again. What is written before it does not
    count without it: a run that goes on drops it.
    """
    run, rules, closed = folded.after, folded.rules, folded.closed
    r, variates, changed = rules.round, run.variates, _changed(folded)
    strikes = strikes_after(before.strikes, closed.counted, closed.clipped)
    run.run_dir.append_traffic(detail)
    written = run.checkpoints.write(
        Checkpoint(
            round=r,
            flat=closed.flat,
            h=dict(closed.h),
            counted=variates.counted | dict.fromkeys(closed.counted, r),
            norms=variates.norms,
            changed=changed,
            evicted=before.evicted,
            strikes=strikes,
            c_source=closed.c_source,
            total_weight=rules.total_weight,
            closing=record,
            sites=folded.evaluations,
            choice=folded.choice,
        )
    )
    run.run_dir.remember([record])
    to_sync = [*written, *run.run_dir.lines, *variates.staged()]
    for i in closed.counted:
        variates.count(i, r)
    variates.changed = changed
    after = Standing(
        r,
        closed.flat,
        closed.h,
        closed.c_source,
        rules.total_weight,
        before.evicted,
        strikes,
        folded.choice,
    )
    return after, to_sync


def _changed(folded: Folded) -> set[int]:
    """Clients that do not have the variate that counts: of a new S_svr nobody has one yet."""
    variates, closed = folded.after.variates, folded.closed
    if folded.after is not folded.before:
        return {*variates.counted, *closed.counted}
    return variates.changed_by(closed.counted, closed.clipped)


class Tidying:
    """What is left to do after rounds that count, beside the next one; whatever is not done is done again."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._task: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._newest = 0
        """The round that model.safetensors and control.safetensors should be of."""
        self._x: weakref.ref[Flat] | None = None
        """Of that round, if it is still in memory."""
        self._written = 0
        """The one that they are of; 0: nobody has written them yet."""
        self._ends = False

    async def done(self) -> None:
        """Waits for what is being done; raises what went wrong."""
        while (task := self._task) is not None:
            await asyncio.shield(task)
            if self._task is task:  # Another who has waited too may have begun the next.
                self._task = None

    def begin(self, run: Run, standing: Standing) -> None:
        """After a round, with the run as it goes on."""
        self._run, self._newest = run, standing.round
        self._run.spool.drop_parts()
        self._next(self._tidy, standing)
        # If it is too early to write x and c, they are written when it is time, if no other x is there then.
        x, r = weakref.ref(standing.flat), standing.round
        self._x = x
        self._cancel_later()
        loop, pause_s = asyncio.get_running_loop(), self._run.run_dir.state_pause_s
        self._later = loop.call_later(pause_s, lambda: loop.create_task(self._catch_up(run, x, r)))

    def _next(self, work: Callable[..., None], *arguments: Any) -> None:
        """Does work in a thread, after what is being done: an earlier x may be on its way to disk."""
        self._task = asyncio.create_task(_after(self._task, work, *arguments))

    def _cancel_later(self) -> None:
        if self._later is not None:
            self._later.cancel()

    def _tidy(self, standing: Standing) -> None:
        run = self._run
        run.variates.prune(run.checkpoints.prune())
        if run.run_dir.state_is_due:
            self._follow(run, standing.flat, standing.round)
        run.spool.drop_round(standing.round)

    def _follow(self, run: Run, flat: Flat, r: int) -> None:
        """Writes x and c for people; where the disk is full, later will do."""
        with suppress(OSError):
            run.run_dir.write_state(run.layout, flat, r, synced=False)
            self._written = r

    async def _catch_up(self, run: Run, x: weakref.ref[Flat], r: int) -> None:
        with suppress(OSError):  # Whoever waits for the same is told.
            await self.done()
        flat = x()
        if self._written < r == self._newest and not self._ends and flat is not None:
            self._next(self._follow, run, flat, r)

    async def end(self) -> None:
        """Leaves nothing to do."""
        self._ends = True
        self._cancel_later()
        await self.done()
        self._run.spool.drop_spares()
        self._run.checkpoints.drop_spare()
        if self._written < self._newest:
            flat, r = self._x() if self._x is not None else None, self._newest
            if flat is None:
                newest = self._run.checkpoints.read(self._run.checkpoints.rounds()[-1])
                flat, r = newest.flat, newest.round
            await asyncio.to_thread(self._run.run_dir.write_state, self._run.layout, flat, r)
            self._written = r


async def _after(before: asyncio.Task[None] | None, work: Callable[..., None], *arguments: Any) -> None:
    if before is not None:
        await before
    await asyncio.to_thread(work, *arguments)


def norms(run: Run, flat: Flat, names: Mapping[int, str]) -> Norms:
    """||c|| and every ||c_i|| as the round leaves them."""
    layout = run.layout
    c = norm(layout.array(flat, k) for k in layout.indices(Purpose.CONTROL))
    return Norms(c=c, clients=run.variates.norms_by_name(names))
