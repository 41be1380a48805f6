"""The calls of federation.proto: encoded messages to the run and back, with every byte counted.

Knows nothing of gRPC: `endpoint` puts it on a server, a simulation calls it directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from common.errors import StateError, UnavailableError, UnknownClientError, WireError, printable
from common.events import Emit
from common.wire.chunks import START
from common.wire.messages import chunk_content
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1 import tensor_pb2
from fedserver.access.authenticate import Caller
from fedserver.access.identities import Identities
from fedserver.access.places import QuickPlaces
from fedserver.config import RunConfig
from fedserver.events.clients import ClientStopped
from fedserver.events.rounds import UpdateDeclined
from fedserver.members.members import Members
from fedserver.members.seats import Member
from fedserver.rpc.broadcast import Made, T, broadcast, needs_c_i
from fedserver.rpc.operator_calls import OperatorCalls
from fedserver.rpc.seat import own_data, require_version, seat_reply, write_seats
from fedserver.rpc.status import finished
from fedserver.rpc.update import MAX_REASON, rule_name
from fedserver.rpc.uploads import Uploads
from fedserver.run.board import Board
from fedserver.run.round import Declined, Outcome
from fedserver.traffic.traffic import CountedCall, Traffic

MAX_PULLS = 8
"""Calls for a round by one client at a time; those that broke unnoticed count until they are noticed."""


class Service(OperatorCalls):
    """Answers every call; here are those of clients in a run. Raises a FedError for what it cannot answer."""

    def __init__(
        self, config: RunConfig, run_id: str, members: Members, board: Board, traffic: Traffic, emit: Emit
    ) -> None:
        super().__init__(config, run_id, members, board, traffic, emit)
        self._uploads = Uploads(members, board, traffic, emit)
        self._broadcasts = QuickPlaces()
        self._pulls: Counter[str] = Counter()
        self._identities = Identities()

    async def join(self, data: bytes, caller: Caller) -> bytes:
        """Gives a seat."""
        with self._traffic.call("Join", caller.peer) as call:
            request = call.request(pb.JoinRequest, data)
            self._identities.speaks(caller, request.client)
            require_version(request.protocol_version)
            member = await self._members.join(request.client, own_data(request))
            run = self._board.require_run()
            write_seats(run, self._members)
            presence = self._members.presence
            presence.gives_signs(member.index, request.gives_signs)
            return call.reply(seat_reply(run, member, presence.sign_s))

    def _member(self, run_id: str, name: str, caller: Caller) -> Member:
        """The member that a request of this run is from, and whose sign of life it is."""
        self._identities.speaks(caller, name)
        if run_id != self._run_id:
            raise UnknownClientError(f"this is run {self._run_id}, not {run_id or 'unnamed'}; join it first")
        return self._members.heard_of(name)

    async def pull_round(self, data: bytes, caller: Caller) -> AsyncGenerator[bytes, None]:
        """Encoded `RoundFrame`s of the next round."""
        with self._traffic.call("PullRound", caller.peer) as call:
            request = call.request(pb.PullRoundRequest, data)
            member = self._member(request.run_id, request.client, caller)
            if self._pulls[member.name] >= MAX_PULLS:
                raise UnavailableError(f"{member.name!r} has {MAX_PULLS} calls for a round open; try again")
            self._pulls[member.name] += 1
            try:
                with self._members.presence.call(member.index):
                    opening, bundles = await self._next_round(member, request, caller, broadcast)
                    if bundles is None:
                        try:
                            yield call.reply(opening)
                        finally:  # A client hangs up on the last frame that it needs, which ends the call.
                            self._heard(member, opening)
                        return
                    async with self._broadcasts.one() as place:
                        yield call.reply(opening)
                        tensors = opening.header.tensors
                        for bundle in bundles:
                            place.moved(len(bundle.data))
                            for part in bundle.parts:
                                spec = tensors[part.position[0]]
                                call.sent(part.data, chunk_content(spec.purpose, spec.name, part.payload))
                            yield bundle.data
            finally:
                self._pulls[member.name] -= 1

    async def _next_round(
        self, member: Member, request: pb.PullRoundRequest, caller: Caller, made: Made[T]
    ) -> tuple[pb.RoundFrame, T | None]:
        """What opens the answer to a call for a round, as soon as there is one, and what follows."""
        presence = self._members.presence
        with presence.waiting(member.index):
            current = await self._board.next_round(member.index)
        caller.require_admitted()
        if current is None:
            return pb.RoundFrame(finished=finished(self._board, member.name)), None
        if current.number <= request.after_round:
            return pb.RoundFrame(resend=pb.Resend(round=current.number)), None
        run = self._board.require_run()
        c_i = None
        try:
            if needs_c_i(run, current, member, request):
                c_i = await run.aside(run.variates.again, member.index)
        except StateError as error:
            self._board.fail(member.index, error)
            raise
        header, tensors = made(run, current, member, request, c_i)
        presence.round_sent(member.index, current.number)
        return pb.RoundFrame(header=header), tensors

    def _heard(self, member: Member, opening: pb.RoundFrame) -> None:
        """A frame with nothing behind it is on its way: whoever hears of the end, hears of it so."""
        if opening.HasField("finished"):
            self._board.tell(member.name)

    async def push_update(self, frames: AsyncIterable[bytes], caller: Caller) -> bytes:
        """Takes in an update, or says what is wrong with it."""
        with self._traffic.call("PushUpdate", caller.peer) as call:
            try:
                reply = await self._take_in(aiter(frames), call, caller)
            except WireError as error:
                reply = pb.PushUpdateReply(
                    outcome=pb.PushUpdateReply.REJECTED,
                    fault=pb.PushUpdateReply.Fault.Value(error.fault),
                    tensor=error.tensor,
                    message=str(error),
                )
            return call.reply(reply)

    async def _take_in(
        self, frames: AsyncIterator[bytes], call: CountedCall, caller: Caller
    ) -> pb.PushUpdateReply:
        frame = await anext(frames, None)
        opening = None if frame is None else call.received(frame)
        if not isinstance(opening, pb.UpdateFrame) or opening.WhichOneof("frame") != "header":
            raise WireError.malformed("an update starts with a header frame")
        header = opening.header
        member = self._member(header.run_id, header.client, caller)
        if header.leaving:
            reason = printable(header.declined, MAX_REASON) or "no reason given"
            self._leave(member, reason, rule_name(header.refused_rule))
            return pb.PushUpdateReply(outcome=pb.PushUpdateReply.ACCEPTED)
        outcome = self._board.verdict(member.index, header.round)
        if outcome is Outcome.ACCEPTED:
            if header.declined:
                outcome = self._decline(member, header)
            else:
                outcome = await self._uploads.take(frames, call, caller, member, header)
        return pb.PushUpdateReply(outcome=pb.PushUpdateReply.Outcome.Value(outcome.name))

    def _decline(self, member: Member, header: pb.UpdateHeader) -> Outcome:
        reason = printable(header.declined, MAX_REASON)
        self._emit(UpdateDeclined(round=header.round, client=member.name, reason=reason))
        self._members.leases.answered(member.index)
        return self._board.answer(member.index, Declined(member.name, header.round, reason, header.diverged))

    async def update_progress(self, data: bytes, caller: Caller) -> bytes:
        """How much of an update is here already."""
        with self._traffic.call("UpdateProgress", caller.peer) as call:
            request = call.request(pb.UpdateProgressRequest, data)
            member = self._member(request.run_id, request.client, caller)
            part = self._board.part(member.index, request.round, request.update_id)
            if part is not None:
                part.begin()
            tensor, offset = part.position if part is not None else START
            received = tensor_pb2.Position(tensor=tensor, offset=offset)
            return call.reply(pb.UpdateProgressReply(received=received))

    async def renew(self, data: bytes, caller: Caller) -> bytes:
        """Takes note of a sign of life."""
        with self._traffic.call("Renew", caller.peer) as call:
            request = call.request(pb.RenewRequest, data)
            member = self._member(request.run_id, request.client, caller)
            if self._config.lease is None:
                self._members.presence.gives_signs(member.index, True)
            self._members.presence.held(member.index, member.name, rule_name(request.awaiting_rule))
            if request.going:
                self._members.presence.says_good_bye(member.index)
                self._emit(
                    ClientStopped(client=member.name, round=self._board.round_waiting_for(member.index))
                )
            return call.reply(pb.RenewReply())

    def refuse(self, credential: str, reason: str) -> None:
        """A credential is not good any more: nobody waits for the client that has none but this."""
        name = self._identities.client_of(credential)
        if name in self._members.by_name:
            self._leave(self._members.get(name), reason)
