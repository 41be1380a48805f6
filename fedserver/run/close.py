"""Closes a round: the new x and c, and the c_i that went into them, on disk; then tidies up after it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from common.records.rounds import Norms, RoundRecord
from common.records.traffic import RoundTraffic
from common.server_step.robust import strikes_after
from common.tensors.layout import Flat, Purpose, norm
from fedserver.events.rounds import RoundClosed
from fedserver.run.fold import Folded
from fedserver.run.prepare import Standing
from fedserver.run.run import Run
from fedserver.store.checkpoints import Checkpoint


def close(run: Run, folded: Folded, record: RoundRecord, detail: RoundTraffic, before: Standing) -> Standing:
    """Makes the round count. The checkpoint is the moment; what follows can be made from it again.

    What is written before it does not count without it: a run that goes on drops it.
    """
    rules, closed, variates = folded.rules, folded.closed, run.variates
    r = rules.round
    changed = variates.changed_by(closed.counted, closed.clipped)
    strikes = strikes_after(before.strikes, closed.counted, closed.clipped)
    run.run_dir.append_traffic(detail)
    run.checkpoints.write(
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
        ),
        along=[run.run_dir.traffic_lines, *variates.staged()],
    )
    for i in closed.counted:
        variates.count(i, r)
    variates.changed = changed
    return Standing(r, closed.flat, closed.h, closed.c_source, rules.total_weight, before.evicted, strikes)


class Tidying:
    """What is left to do after rounds that count, beside the next one; whatever is not done is done again."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._task: asyncio.Task[None] | None = None
        self._behind: Flat | None = None
        """x and c that model.safetensors and control.safetensors do not have yet."""

    async def done(self) -> None:
        """Waits for the round before; raises what went wrong."""
        if self._task is not None:
            await asyncio.shield(self._task)
            self._task = None

    def begin(self, standing: Standing) -> None:
        """After a round; the one before it is done."""
        self._run.spool.drop_parts()
        self._task = asyncio.create_task(asyncio.to_thread(self._tidy, standing))

    def _tidy(self, standing: Standing) -> None:
        run = self._run
        run.variates.prune(run.checkpoints.prune())
        written = run.run_dir.keep_state(run.layout, standing.flat)
        self._behind = None if written else standing.flat
        run.spool.drop_round(standing.round)

    async def end(self) -> None:
        """Leaves nothing to do."""
        await self.done()
        if self._behind is not None:
            await asyncio.to_thread(self._run.run_dir.write_state, self._run.layout, self._behind)
            self._behind = None


def norms(run: Run, flat: Flat, names: Mapping[int, str]) -> Norms:
    """||c|| and every ||c_i|| as the round leaves them."""
    layout = run.layout
    c = norm(layout.array(flat, k) for k in layout.indices(Purpose.CONTROL))
    return Norms(c=c, clients={names[i]: size for i, size in run.variates.norms.items()})


def as_event(record: RoundRecord, rounds: int) -> RoundClosed:
    """What people are told of a round that is closed."""
    sent = record.bytes
    return RoundClosed(
        round=record.round,
        rounds=rounds,
        accuracy=record.accuracy,
        validation_accuracy=record.validation_accuracy,
        train_loss=record.train_loss,
        updates=record.updates,
        down_bytes=sent.down.total,
        up_bytes=sent.up.total,
        seconds=record.seconds.round,
    )
