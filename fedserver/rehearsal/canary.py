"""The rehearsal: broadcast, a few steps, uploads and the server's step with everybody, before round 1.

It goes the way of a round, under a number above that of the last one, so that nothing of it can be taken for
a round's. x, c and every c_i stay as they are: the step's result is looked at and dropped, and no variate is
staged. A server that is killed in it has no checkpoint, and rehearses again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from functools import partial

from common.errors import RunError
from common.events import Emit
from common.server_step.robust import Clip
from common.server_step.rules import Rules
from common.server_step.step import ServerStep
from common.server_step.updates import ReadUpdate, UpdateReader
from common.tensors.layout import all_finite
from fedserver.events.canary import CanaryOpened, CanaryPassed
from fedserver.members.members import Members
from fedserver.members.watch import Watch
from fedserver.rehearsal.report import ClientAnswer, require_go
from fedserver.run.board import Board
from fedserver.run.deadlines import WaitingRule
from fedserver.run.prepare import Standing
from fedserver.run.round import Answer, Encoded, Round, Update, encode
from fedserver.run.run import Run
from fedserver.run.supervision import supervise

STEPS = 3
PATIENCE_S = 3600.0
"""How long it waits for a client in a run without a deadline."""


@dataclass(frozen=True)
class Canary:
    """Who rehearses, and where it is told."""

    members: Members
    board: Board
    watch: Watch
    emit: Emit

    async def fly(self, run: Run, standing: Standing) -> None:
        """Rehearses a round; raises unless every client has an update that can be folded."""
        started, rules = time.monotonic(), rules_of_canary(run, self.members)
        drawn = self.members.drawn(run.config.seed, rules.round, None)
        ahead = await run.aside(encode, run, rules.round, standing.flat)
        reader = UpdateReader(rules, run.layout, ahead.broadcast)
        current = Round(reader, ahead.bundles, drawn, standing.c_source)
        self.emit(CanaryOpened(clients=len(drawn), steps=rules.local_steps or 0))
        try:
            heard = await self._answers(run, current)
            rows = [heard[i].row() for i in drawn]
            for row in rows:
                self.emit(row)
            require_go(rows)
            updates = {i: each.answer for i, each in heard.items() if isinstance(each.answer, Update)}
            await asyncio.to_thread(fold, run, reader, ahead, standing, updates)
        finally:
            current.release()
            run.spool.drop_parts()
            run.spool.drop_round(rules.round)
        self.emit(CanaryPassed(clients=len(drawn), seconds=time.monotonic() - started))

    async def _answers(self, run: Run, current: Round) -> dict[int, ClientAnswer]:
        """Waits for everybody, but for nobody who has left or takes far too long."""
        heard: dict[int, ClientAnswer] = {}
        presence = self.members.presence
        self.members.leases.round_opens(current.answers)
        coming = await self.board.open_round(current)

        def note(i: int, answer: asyncio.Future[Answer]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                member = self.members.by_index[i]
                heard[i] = ClientAnswer(member.name, member.examples, answer.result(), presence.upload_s(i))

        for i, answer in coming.items():
            answer.add_done_callback(partial(note, i))
        rule = WaitingRule(run.config.deadline or PATIENCE_S, quorum=0.0)
        supervision = asyncio.create_task(
            supervise(current, self.board, rule, self.members, self.watch, self.emit)
        )
        try:
            await asyncio.gather(*coming.values())
        finally:
            supervision.cancel()
        return heard


def rules_of_canary(run: Run, members: Members) -> Rules:
    """Those of round 1 but for its length, under a number that no round has."""
    num_clients = run.config.num_clients - len(members.evicted_before(1))
    first = run.rules(1, members.total_examples(1), members.example_limit, num_clients, {})
    steps = min(STEPS, run.config.local_steps or STEPS)
    return replace(
        first,
        round=run.config.rounds + 1,
        local_steps=steps,
        local_epochs=None,
        validation=0.0,
        norm_bound=None,
        canary=True,
    )


def fold(
    run: Run, reader: UpdateReader, ahead: Encoded, standing: Standing, updates: dict[int, Update]
) -> None:
    """Takes the server's step, and drops what comes of it; raises unless that is finite."""
    rules, layout = reader.rules, run.layout
    step = ServerStep(rules, layout, ahead.broadcast, exact=run.down.plain, h=standing.h)

    def read(i: int, _: Clip | None = None) -> ReadUpdate:
        update, values = updates[i], run.spool.values(rules.round, i)
        return reader.read(values, None, update.steps, update.examples, follows=update.follows)

    for i in sorted(updates):
        step.add(i, read(i))
    absent = [None] * (rules.num_clients - len(updates)) if step.holds_updates else []
    closed = step.close(standing.flat, again=read, absent=absent)
    for k, spec in enumerate(layout.specs):
        if not all_finite(layout.array(closed.flat, k), spec.dtype):
            raise RunError(
                f"canary: {spec.name} is not finite after {rules.local_steps} steps; lower --eta-l"
            )
