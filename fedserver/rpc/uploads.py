"""Updates on their way in: at most so many at a time, each into a file, counted once it is whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from common.errors import Fault, StateError, SupersededError, UnavailableError, WireError
from common.events import Emit
from common.wire.chunks import Chunk, Position
from common.wire.manifest import require_expected
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.access.places import Place, QuickPlaces
from fedserver.events.rounds import UpdateAccepted
from fedserver.members.members import Members
from fedserver.members.seats import Member
from fedserver.rpc.update import decode, read_update, require_announced, require_sound
from fedserver.run.board import Board
from fedserver.run.round import Declined, Outcome, Round, Update
from fedserver.run.run import Run
from fedserver.store.spool import Upload
from fedserver.store.stream import Stream
from fedserver.traffic.traffic import CountedCall, Traffic

MAX_UPLOADS = 32
"""Uploads read at a time; the others wait in their clients, so the server's memory stays bounded."""
IDLE_S = 60.0
"""How often an upload without a new frame is looked at."""
IDLE_BYTES = 1024
"""An upload of which less than this has come since the last look is given up; pings alone are less."""


class Uploads:
    """Takes in the streams of PushUpdate."""

    def __init__(self, members: Members, board: Board, traffic: Traffic, emit: Emit) -> None:
        self._members = members
        self._board = board
        self._traffic = traffic
        self._emit = emit
        self._places = asyncio.Semaphore(MAX_UPLOADS)
        self._quick = QuickPlaces()

    async def take(
        self,
        frames: AsyncIterator[bytes],
        call: CountedCall,
        caller: Caller,
        member: Member,
        header: pb.UpdateHeader,
    ) -> Outcome:
        """Reads the update that a header opens, and counts it if all of it is good."""
        run = self._board.require_run()
        update, current = read_update(header, run.num_classes), self._board.round
        assert current is not None, "there is a verdict before there is an upload"
        rules = current.rules
        require_announced(update, self._members.evaluated_on(member.index, rules.held_out(member.examples)))
        if rules.evaluation_only:
            return self._evaluated(member, update)
        require_sound(update, member, run.fingerprint, rules)
        require_expected(header.tensors, current.reader.encoding)
        start = (header.resume_from.tensor, header.resume_from.offset)
        with self._members.presence.uploading(member.index):
            async with self._places, self._quick.one() as place:
                self._members.leases.upload_begins(member.index)
                self._members.uploads_seen.begins(member.index)
                return await self._receive(frames, call, caller, current, member, update, start, place)

    def _evaluated(self, member: Member, update: Update) -> Outcome:
        """Takes the answer to a round that asks for an evaluation only; nobody else's update is in time."""
        self._members.leases.answered(member.index)
        if update.evaluation is not None:
            return self._board.answer(member.index, update)
        self._board.answer(member.index, Declined(member.name, update.round, "its release cannot evaluate"))
        return Outcome.LATE

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
        """Reads the chunks. What came of a stream that breaks stays; of one that is wrong, nothing does."""
        run = self._board.require_run()
        encoding = current.reader.encoding
        layout = encoding.encoded
        upload = run.spool.upload(member.index, update.update_id, start, encoding)
        stream = upload.begin()
        try:
            async with self._watched(call, stream) as watch:
                async for message in frames:
                    chunks = call.received_frames(message)
                    upload.require_current(stream)
                    came = here = 0
                    for chunk in chunks:
                        if not isinstance(chunk, Chunk):
                            raise WireError.malformed("after the header only chunks may follow")
                        upload.add(chunk)
                        came += len(chunk.data)
                        here = layout.offsets[chunk.tensor] + chunk.offset + len(chunk.data)
                    watch.frames += 1
                    place.moved(came)
                    self._progress(member.index, here, came)
            update = await run.aside(decode, run, current, member, update, *upload.mapped(), upload.seen)
        except StateError as error:
            self._board.fail(member.index, error)
            raise
        except WireError as error:
            # A stream that was cut may look like one that ended early: what came of it is still good.
            if error.fault is not Fault.TOO_FEW_BYTES:
                run.spool.drop(member.index, upload)
            raise
        caller.require_admitted()
        upload.require_current(stream)
        return self._counted(run, member, update, upload)

    def _counted(self, run: Run, member: Member, update: Update, upload: Upload) -> Outcome:
        """Takes an update that is whole and good, unless it comes too late."""
        outcome = self._board.verdict(member.index, update.round)
        if outcome is not Outcome.ACCEPTED:
            run.spool.drop(member.index, upload)
            return outcome
        run.spool.keep(member.index, update.round, upload)
        self._members.leases.answered(member.index)
        outcome = self._board.answer(member.index, update)
        self._emit(UpdateAccepted(round=update.round, client=member.name, loss=update.loss))
        return outcome

    def _progress(self, i: int, num_bytes: int, came: int) -> None:
        """So much of an update is here, and so much has just come."""
        self._members.leases.arrived(i, num_bytes)
        self._members.presence.seen_to_move(i)
        self._members.uploads_seen.arrived(i, num_bytes, came)

    @asynccontextmanager
    async def _watched(self, call: CountedCall, stream: Stream) -> AsyncIterator[_Watch]:
        """Ends the block for a stream without progress, and for one that another has taken the place of.

        The former must not hold its place for ever; a slow one may take all its time.
        """
        watch = _Watch(call, self._traffic)
        try:
            async with asyncio.timeout(None) as limit:
                with watch.over(limit, stream):
                    yield watch
        except TimeoutError:
            if stream.ended:
                raise SupersededError("another stream of this client goes on with its update") from None
            raise UnavailableError(f"nothing came for {IDLE_S:.0f} s; go on with the update") from None


class _Watch:
    """Lets the time of a stream end when it is replaced, or has got nowhere since the last look."""

    def __init__(self, call: CountedCall, traffic: Traffic) -> None:
        self.frames = 0
        """That have come."""
        self._call = call
        self._traffic = traffic
        self._seen = 0, -IDLE_BYTES
        """Frames and bytes at the last look."""
        self._next: asyncio.TimerHandle | None = None

    @contextmanager
    def over(self, limit: asyncio.Timeout, stream: Stream) -> Iterator[None]:
        """Watches while the block runs."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            limit.reschedule(loop.time())

        def look() -> None:
            if self._moves():
                self._next = loop.call_later(IDLE_S, look)
            else:
                end()

        self._next = loop.call_later(IDLE_S, look)
        stream.on_end = end
        try:
            yield
        finally:
            stream.on_end = None
            self._next.cancel()

    def _moves(self) -> bool:
        frames, num_bytes = self._seen
        bytes_now = self._traffic.progress(self._call)
        self._seen = self.frames, bytes_now or 0
        return self.frames > frames or (bytes_now is not None and bytes_now - num_bytes >= IDLE_BYTES)
