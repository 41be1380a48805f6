"""The server's side of a simulation: rounds and updates that are handed over rather than sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np

from common.errors import StateError, WireError
from common.events import Emit
from common.tensors.layout import Flat, Purpose
from common.wire.byte_counts import chunk_sizes
from common.wire.chunks import Position
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.access.places import Place
from fedserver.config import RunConfig
from fedserver.members.members import Members
from fedserver.members.seats import Member
from fedserver.rpc.broadcast import Announced, announced
from fedserver.rpc.seat import seat_reply
from fedserver.rpc.service import Service
from fedserver.rpc.update import decode
from fedserver.rpc.uploads import Uploads
from fedserver.run.board import Board
from fedserver.run.round import Outcome, Round, Update
from fedserver.run.run import Run
from fedserver.store.spool import Upload
from fedserver.traffic.traffic import CountedCall, Traffic

SEEN = (Purpose.MODEL, Purpose.CONTROL)
"""What a client of ours sees to itself: it hands in no y_i and no c_i+ that is not finite."""


@dataclass(frozen=True, eq=False)
class Handed:
    """An update in the memory of this process."""

    payload: Flat
    """y_i and, where it is sent, c_i, as they would travel."""
    room: Flat | None
    """Where the values lie, and the server's from now on; None: the client needs it again."""


@dataclass(frozen=True, eq=False)
class HandedRound:
    """The tensors of a round in the memory of this process."""

    round: int
    raw: Flat
    """x, buffers and c as they would travel, for all clients the same."""
    sent: int
    """How many bytes of them this client gets."""
    behind: Flat
    """What comes behind them for this client: its c_i, if it has lost that, and frozen tensors."""

    def flat(self, raw: Flat) -> Flat:
        """All of it, with these bytes for `raw`; a copy where something comes behind."""
        x = raw[: self.sent]
        return np.concatenate([x, self.behind]) if len(self.behind) else x


class HandedService(Service):
    """Answers clients that are in this process."""

    def __init__(
        self, config: RunConfig, run_id: str, members: Members, board: Board, traffic: Traffic, emit: Emit
    ) -> None:
        super().__init__(config, run_id, members, board, traffic, emit)
        self._uploads = HandedUploads(members, board, traffic, emit)

    async def hand_round(self, data: bytes, caller: Caller) -> tuple[bytes, HandedRound | None]:
        """The encoded frame that opens the next round, and the tensors that it announces."""
        with self._traffic.call("PullRound", caller.peer) as call:
            request = call.request(pb.PullRoundRequest, data)
            member = self._member(request.run_id, request.client, caller)
            with self._members.presence.call(member.index):
                opening, round_for_one = await self._next_round(member, request, caller, _made)
                reply = call.reply(opening)
                if round_for_one is None:
                    self._heard(member, opening)
                    return reply, None
                what, r, raw = round_for_one
                own_at = len(what.sent.specs)
                call.unsent(False, chunk_sizes(what.sent))
                call.unsent(False, chunk_sizes(what.own, own_at))
                call.unsent(False, chunk_sizes(what.frozen.layout, own_at + len(what.own.specs)))
                return reply, _as_announced(what, r, raw)

    def seat(self, i: int) -> bytes:
        """What client i was told when it joined, for the process that has it."""
        members = self._members
        reply = seat_reply(self._board.require_run(), members.by_index[i], members.presence.sign_s)
        return reply.SerializeToString()

    async def take_update(self, header: bytes, handed: Handed | None, caller: Caller) -> bytes:
        """Takes in an update, or what a client says instead of one."""
        return await self.push_update(_Stream(header, handed), caller)


def _made(
    run: Run, current: Round, member: Member, request: pb.PullRoundRequest, c_i: Flat | None
) -> tuple[pb.RoundHeader, tuple[Announced, int, Flat]]:
    what = announced(run, current, member, request, c_i)
    return what.header, (what, current.number, current.raw)


def _as_announced(what: Announced, r: int, raw: Flat) -> HandedRound:
    own = what.c_i if what.c_i is not None else raw[:0]
    frozen = what.frozen.flat[: what.frozen.layout.num_bytes]
    behind = np.concatenate([own, frozen]) if len(own) or len(frozen) else raw[:0]
    return HandedRound(r, raw, what.sent.num_bytes, behind)


class _Stream:
    """An update's frames: the header, and what would follow."""

    def __init__(self, header: bytes, handed: Handed | None) -> None:
        self._left = [header]
        self.handed = handed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


class HandedUploads(Uploads):
    """Takes in updates that are here already."""

    async def _receive(
        self,
        frames: AsyncIterator[bytes],
        call: CountedCall,
        caller: Caller,
        current: Round,
        member: Member,
        update: Update,
        start: Position,
        place: Place,
    ) -> Outcome:
        assert isinstance(frames, _Stream), "nobody sends frames here"
        assert frames.handed is not None, "a header that announces tensors comes with them"
        run, i = self._board.require_run(), member.index
        layout = current.reader.encoding.encoded
        call.unsent(True, chunk_sizes(layout))
        try:
            upload, update = await run.aside(_taken, run, current, member, update, frames.handed)
        except StateError as error:
            self._board.fail(i, error)
            raise
        end = layout.offsets[-1] + layout.specs[-1].num_bytes
        self._progress(i, end, end)
        return self._counted(run, member, update, upload)


def _taken(run: Run, current: Round, member: Member, update: Update, handed: Handed) -> tuple[Upload, Update]:
    """The update where it stays until the round is over; raises, and drops it, if it is bad."""
    encoding, i = current.reader.encoding, member.index
    upload = run.spool.handed(i, update.update_id, handed.payload, handed.room, encoding)
    try:
        return upload, decode(run, current, member, update, *upload.mapped(), SEEN)
    except WireError:
        run.spool.drop(i, upload)
        raise
