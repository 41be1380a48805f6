"""Before round 1 of a run with `--warm-variates`: every client's gradient at the first x, as its c_i.

It goes the way of a round, under a number above that of the last one, and its updates have c_i alone: x stays
as it is. What counts is a checkpoint of round 0, with the c_i kept as variates of round 0 and c, their mean.
A server that is killed before it is there asks again; one that is killed later goes on from it. Clients
remember nothing of this: the server sends each its c_i along until an update of the client has counted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import DivergedError, RunError
from common.events import Emit
from common.server_step.recount import recounted
from common.server_step.rules import Rules
from common.server_step.step import CSource
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat, Purpose, norm
from fedserver.events.canary import FirstVariatesAsked, FirstVariatesKnown
from fedserver.members.members import Members
from fedserver.members.watch import Watch
from fedserver.run.board import Board
from fedserver.run.deadlines import WaitingRule
from fedserver.run.prepare import Standing
from fedserver.run.round import Declined, Excused, Round, encode
from fedserver.run.run import Run
from fedserver.run.supervision import supervise
from fedserver.store.checkpoints import Checkpoint
from fedserver.traffic.traffic import Traffic


@dataclass(frozen=True)
class FirstVariates:
    """Who is asked, and where it is told and counted."""

    members: Members
    board: Board
    watch: Watch
    traffic: Traffic
    emit: Emit

    async def asked_for(self, run: Run, standing: Standing) -> Standing:
        """Where the run stands before round 1, now that c is known; raises unless everybody has answered."""
        rules = _rules(run, self.members)
        drawn = self.members.drawn(run.config.seed, rules.round, None)
        ahead = await run.aside(encode, run, rules.round, standing.flat)
        model = {*run.layout.indices(Purpose.MODEL, Purpose.BUFFER)}
        bundles = [bundle for bundle in ahead.bundles if bundle.position[0] in model]
        reader = UpdateReader(rules, run.layout, ahead.broadcast)
        current = Round(reader, bundles, drawn, standing.c_source, ahead.raw)
        # Round 1 begins with it: its bytes are in the account of that round.
        self.traffic.open_round(1, number=rules.round)
        self.emit(FirstVariatesAsked(clients=len(drawn)))
        try:
            await self._answers(current)
            standing = await run.aside(self._known, run, rules, drawn, standing)
        finally:
            current.release()
            run.spool.drop_parts()
            run.spool.drop_round(rules.round)
        await run.sync(_counted(run, rules, standing))
        layout = run.layout
        c = norm(layout.array(standing.flat, k) for k in layout.indices(Purpose.CONTROL))
        self.emit(FirstVariatesKnown(clients=len(drawn), norm=c))
        return standing

    async def _answers(self, current: Round) -> None:
        """Waits for everybody: the mean of some would be another c. One that has left may come back."""
        self.members.leases.round_opens(current.answers)
        coming = await self.board.open_round(current)
        everybody = WaitingRule(None, quorum=1.0)
        supervision = asyncio.create_task(
            supervise(current, self.board, everybody, self.members, self.watch, self.emit)
        )
        try:
            answers = await asyncio.gather(*coming.values())
        finally:
            supervision.cancel()
        for answer in answers:
            if isinstance(answer, Declined | Excused):
                diverged = isinstance(answer, Declined) and answer.diverged
                raise (DivergedError if diverged else RunError)(
                    f"--warm-variates: {answer.client} has no gradient at the first x to give: "
                    f"{answer.reason}; start again when all clients are ready, or without it"
                )

    def _known(self, run: Run, rules: Rules, drawn: list[int], standing: Standing) -> Standing:
        """Keeps every c_i as a variate; c is their mean, with the weights that it has in every round."""
        variates, known = run.variates, []
        for i in drawn:
            c_i: Flat = run.spool.values(rules.round, i)[: variates.layout.num_bytes].copy()
            variates.stage_variate(i, 0, c_i)
            known.append((rules.client_weight(self.members.by_index[i].examples), c_i))
        flat = standing.flat.copy()
        found = recounted(rules, variates.layout, known)
        for k, tensor in zip(run.layout.indices(Purpose.CONTROL), found, strict=True):
            run.layout.store(flat, k, tensor)
        return replace(standing, flat=flat, c_source=CSource.FROM_VARIATES, total_weight=rules.total_weight)


def _counted(run: Run, rules: Rules, standing: Standing) -> list[Path]:
    """Writes the checkpoint of round 0; it counts when what is returned is synced."""
    variates = run.variates
    first = dict.fromkeys(variates.norms, 0)
    written = run.checkpoints.write(
        Checkpoint(
            round=0,
            flat=standing.flat,
            h={},
            counted=first,
            norms=variates.norms,
            changed=set(),
            evicted=standing.evicted,
            strikes={},
            c_source=standing.c_source,
            total_weight=rules.total_weight,
            closing=None,
        )
    )
    to_sync = [*written, *variates.staged()]
    for i in first:
        variates.count(i, 0)
    return to_sync


def _rules(run: Run, members: Members) -> Rules:
    """Those of round 1 under a number that no round has; no update is too large."""
    num_clients = run.config.num_clients - len(members.evicted_before(1))
    first = run.rules(1, members.total_examples(1), members.example_limit, num_clients, {})
    return replace(first, round=run.config.rounds + 1, gradient_only=True, norm_bound=None)
