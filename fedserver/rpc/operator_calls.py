"""The calls that are no part of a round: an operator's, and those of whoever watches a run or asks first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from common.events import Emit
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.config import RunConfig
from fedserver.events.clients import ClientLeft
from fedserver.members.members import Members
from fedserver.members.seated import EVICTED
from fedserver.members.seats import Member
from fedserver.rpc.own_view import seen_by
from fedserver.rpc.probe import Probes
from fedserver.rpc.seat import write_members
from fedserver.rpc.status import Watching, status_reply
from fedserver.run.board import Board, Phase
from fedserver.traffic.traffic import Traffic


class OperatorCalls:
    """Status, WatchStatus, Evict and Probe of one run; `Service` has the calls of its clients beside them."""

    def __init__(
        self, config: RunConfig, run_id: str, members: Members, board: Board, traffic: Traffic, emit: Emit
    ) -> None:
        self._config = config
        self._run_id = run_id
        self._members = members
        self._board = board
        self._traffic = traffic
        self._emit = emit
        self._probes = Probes(run_id)
        self._watching = Watching(board, self._status)

    async def probe(self, data: bytes, caller: Caller) -> bytes:
        """Tells a client what to expect, and changes nothing."""
        with self._traffic.call("Probe", caller.peer) as call:
            request = call.request(pb.ProbeRequest, data)
            return call.reply(self._probes.answer(request, caller, self._board.run))

    async def status(self, data: bytes, caller: Caller) -> bytes:
        """What the run is doing; a client sees its own part only."""
        with self._traffic.call("Status", caller.peer) as call:
            call.request(pb.StatusRequest, data)
            return call.reply(seen_by(caller, self._status()))

    async def watch_status(self, data: bytes, caller: Caller) -> AsyncGenerator[bytes, None]:
        """The same whenever it has changed, until the run is over."""
        with self._traffic.call("WatchStatus", caller.peer) as call:
            request = call.request(pb.WatchStatusRequest, data)
            async with aclosing(self._watching.replies(caller, request.most_replies)) as replies:
                async for reply in replies:
                    yield call.reply(reply)

    def _status(self) -> pb.StatusReply:
        return status_reply(self._run_id, self._config, self._board, self._members, self._traffic)

    async def evict(self, data: bytes, caller: Caller) -> bytes:
        """Takes a member out of the run, at the operator's word."""
        with self._traffic.call("Evict", caller.peer) as call:
            request = call.request(pb.EvictRequest, data)
            caller.require_operator()
            member = self._members.get(request.client)
            self._members.evict(member, self._board.number)
            write_members(self._board.require_run(), self._members)
            self._leave(member, EVICTED)
            return call.reply(pb.EvictReply())

    def _leave(self, member: Member, reason: str, rule: str = "") -> None:
        """No round that has enough others waits for this client until it joins again."""
        if self._members.leave(member, reason, rule):
            self._emit(ClientLeft(client=member.name, reason=reason, rule=rule))
            self._members.presence.told(member.index)
        self._board.look_again()
        if self._board.phase is Phase.FINISHED:
            self._board.tell(member.name)
