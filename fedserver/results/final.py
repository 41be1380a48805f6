"""The evaluation after the last round: x goes once more to those who can evaluate it.

It is a round R + 1 on the board whose header asks for an evaluation and nothing else. Nothing of it is on
disk before its result is in the record of round R: a server that is killed meanwhile asks again.
"""

from __future__ import annotations

import time
from dataclasses import replace

from common.data.held_out import held_out_count
from common.events import Emit
from common.records.sites import SiteCounts
from common.server_step.step import CSource
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat, Purpose
from fedserver.events.rounds import ClientExcused, RoundOpened
from fedserver.members.attendance import LEFT, NO_ANSWER, NO_SIGN
from fedserver.members.members import Members
from fedserver.run.board import Board
from fedserver.run.deadlines import RETURN_S
from fedserver.run.round import Excused, Round, encode
from fedserver.run.run import Run
from fedserver.traffic.traffic import Traffic

LOOK_S = 1.0
"""How often it is looked at who is still there."""
NOTHING_TO_EVALUATE = "nothing to evaluate on"


class FinalEvaluation:
    """Asks everybody who can for what the last x does at their site, and waits for those who are there."""

    def __init__(self, run: Run, members: Members, board: Board, traffic: Traffic, emit: Emit) -> None:
        self._run = run
        self._members = members
        self._board = board
        self._traffic = traffic
        self._emit = emit

    async def counts(self, flat: Flat) -> tuple[dict[str, SiteCounts], dict[str, str]]:
        """What they counted, by name, and why others did not."""
        held = self._held_out()
        asked = [i for i, n in held.items() if self._members.evaluated_on(i, n) != 0]
        asked = [i for i in asked if i not in self._members.gone]
        if not asked:
            return {}, {}
        current, started = await self._opened(flat, asked), time.monotonic()
        while waiting := current.awaited():
            for i in waiting:
                reason = self._reason(i, held[i], time.monotonic() - started)
                if reason:
                    self._excuse(current, i, reason)
            if current.awaited():
                await self._board.news(LOOK_S)
        current.release()
        found = {each.client: each.evaluation for each in current.updates().values() if each.evaluation}
        absent = {name: why for name, why in current.absent().items() if why != NOTHING_TO_EVALUATE}
        return found, absent

    def _held_out(self) -> dict[int, int]:
        """Examples that each member keeps aside."""
        share, members = self._run.config.validation, self._members.in_order()
        return {each.index: held_out_count(share, each.examples) for each in members}

    async def _opened(self, flat: Flat, asked: list[int]) -> Round:
        run, members, r = self._run, self._members, self._run.config.rounds
        last = run.rules(r, members.total_examples(r), members.example_limit, run.config.num_clients, {})
        rules = replace(last, round=r + 1, evaluate=True, evaluation_only=True)
        encoded = await run.aside(encode, run, r + 1, flat)
        model = {*run.layout.indices(Purpose.MODEL, Purpose.BUFFER)}
        bundles = [bundle for bundle in encoded.bundles if bundle.position[0] in model]
        reader = UpdateReader(rules, run.layout, encoded.broadcast)
        current = Round(reader, bundles, asked, CSource.FROM_MOVE)
        self._traffic.open_round(r + 1)
        members.leases.round_opens(asked)
        await self._board.open_round(current)
        self._emit(RoundOpened(round=r + 1, clients=len(asked)))
        return current

    def _reason(self, i: int, held_out: int, waited_s: float) -> str:
        """Why nobody waits for client i any longer; empty for one that is there, or may come back."""
        members, presence, deadline = self._members, self._members.presence, self._run.config.deadline
        if i in members.gone:
            return f"{LEFT}: {members.gone[i]}"
        if members.evaluated_on(i, held_out) == 0:
            return NOTHING_TO_EVALUATE
        if members.is_gone(i) or (presence.is_missing(i) and presence.silent_s(i) > RETURN_S):
            return NO_SIGN
        return NO_ANSWER if deadline is not None and waited_s >= deadline else ""

    def _excuse(self, current: Round, i: int, reason: str) -> None:
        name = self._members.by_index[i].name
        if reason != NOTHING_TO_EVALUATE:
            self._emit(ClientExcused(round=current.number, client=name, reason=reason))
        self._board.answer(i, Excused(name, reason))
