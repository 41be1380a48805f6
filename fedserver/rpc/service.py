"""The calls of federation.proto: encoded messages to `Federation` and back, with every byte counted.

Knows nothing of gRPC: `endpoint` puts it on a server, a simulation calls it directly.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from common.errors import Fault, SupersededError, UnavailableError, WireError, WrongRunError, printable
from common.wire.chunks import PROTOCOL_VERSION, START, Position, parsed, read_chunk
from common.wire.manifest import read_manifest, require_same
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1 import tensor_pb2
from fedserver.access.authenticate import Caller
from fedserver.rpc.broadcast import broadcast
from fedserver.rpc.status import reply as status_reply
from fedserver.run.federation import Federation
from fedserver.run.members import Member, OwnData
from fedserver.run.round import Answer, Outcome
from fedserver.traffic.traffic import Call

MAX_UPLOADS = 32
"""Uploads read at a time; the others wait in their clients, so the server's memory stays bounded."""
MAX_PULLS = 8
"""Calls for a round by one client at a time; those that broke unnoticed count until they are noticed."""
IDLE_S = 60.0
"""How often an upload without a new frame is looked at."""
IDLE_BYTES = 1024
"""An upload of which less than this has come since the last look is given up; pings alone are less."""


class Service:
    """Answers the messages of clients. Raises a FedError for what it cannot answer."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._traffic = federation.traffic
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)
        self._pulls: Counter[str] = Counter()
        self._clients: dict[str, str] = {}
        """Names of clients by the credential that they have presented."""
        self._credentials: dict[str, str] = {}
        """The last credential of each client."""

    async def join(self, data: bytes, caller: Caller) -> bytes:
        """Gives a seat."""
        with self._traffic.call("Join", caller.peer) as call:
            request = parsed(pb.JoinRequest, call.received(data))
            self._speaks(caller, request.client)
            reply = await self._seat(request)
            return call.sent(reply.SerializeToString())

    async def _seat(self, request: pb.JoinRequest) -> pb.JoinReply:
        if request.protocol_version != PROTOCOL_VERSION:
            raise WrongRunError(
                f"this server speaks protocol version {PROTOCOL_VERSION}, "
                f"the client {request.protocol_version}; install the same release on both"
            )
        own = request.own_data if request.HasField("own_data") else None
        federation = self._federation
        member = await federation.join(
            request.client, OwnData(own.examples, tuple(own.class_names)) if own else None
        )
        model = federation.prepared.model
        return pb.JoinReply(
            run_id=federation.run_id,
            index=member.index,
            num_clients=federation.config.num_clients,
            rounds=federation.config.rounds,
            seed=federation.config.seed,
            model=pb.ModelSpec(
                **model,
                fingerprint=federation.fingerprint,
                class_names=federation.prepared.class_names,
                mean=federation.prepared.mean,
                std=federation.prepared.std,
            ),
            shard=None
            if member.shard is None
            else pb.Shard(dataset=federation.config.dataset, indices=member.shard),
            lease_seconds=federation.config.lease or 0.0,
        )

    async def pull_round(self, data: bytes, caller: Caller) -> AsyncIterator[bytes]:
        """Encoded `RoundFrame`s of the next round."""
        with self._traffic.call("PullRound", caller.peer) as call:
            request = parsed(pb.PullRoundRequest, call.received(data))
            self._speaks(caller, request.client)
            self._federation.require_run(request.run_id)
            member = self._federation.heard_of(request.client)
            if self._pulls[member.name] >= MAX_PULLS:
                raise UnavailableError(f"{member.name!r} has {MAX_PULLS} calls for a round open; try again")
            self._pulls[member.name] += 1
            try:
                async for frame in self._round_frames(member, request, caller):
                    yield call.sent(frame)
            finally:
                self._pulls[member.name] -= 1

    async def _round_frames(
        self, member: Member, request: pb.PullRoundRequest, caller: Caller
    ) -> AsyncIterator[bytes]:
        federation = self._federation
        current = await federation.next_round(member)
        caller.require_admitted()
        if current is None:
            # Noted first: a client hangs up on this frame, which ends this coroutine at the yield.
            federation.told.add(member.name)
            yield pb.RoundFrame(finished=self._finished()).SerializeToString()
            return
        if current.number <= request.after_round:
            yield pb.RoundFrame(resend=pb.Resend(round=current.number)).SerializeToString()
            return
        header, frames = await asyncio.to_thread(broadcast, federation, current, member, request)
        yield pb.RoundFrame(header=header).SerializeToString()
        for frame in frames:
            yield frame.data

    def _finished(self) -> pb.Finished:
        last = self._federation.last
        return pb.Finished(
            round=last.round if last else 0,
            accuracy=last.accuracy if last else 0.0,
            reason=self._federation.end_reason,
        )

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
            return call.sent(reply.SerializeToString())

    async def _take_in(self, frames: AsyncIterator[bytes], call: Call, caller: Caller) -> pb.PushUpdateReply:
        first = await self._next_frame(frames, call)
        opening = parsed(pb.UpdateFrame, first) if first is not None else pb.UpdateFrame()
        if opening.WhichOneof("frame") != "header":
            raise WireError.malformed("an update starts with a header frame")
        federation, header = self._federation, opening.header
        self._speaks(caller, header.client)
        federation.require_run(header.run_id)
        answer = _answer(header)
        member = federation.heard_of(answer.name)
        if header.leaving:
            federation.leave(answer.name, answer.declined or "no reason given")
            return pb.PushUpdateReply(outcome=pb.PushUpdateReply.ACCEPTED)
        outcome = federation.verdict(answer)
        if outcome is None and answer.declined:
            outcome = federation.finish(answer)
        if outcome is None:
            require_same(read_manifest(header.tensors), federation.update_reader.encoding)
            start = (header.resume_from.tensor, header.resume_from.offset)
            with federation.leases.held(member.index):
                async with self._uploads:
                    outcome = await self._receive(frames, call, caller, answer, start)
        return pb.PushUpdateReply(outcome=pb.PushUpdateReply.Outcome.Value(outcome.name))

    async def _receive(
        self, frames: AsyncIterator[bytes], call: Call, caller: Caller, answer: Answer, start: Position
    ) -> Outcome:
        """Reads the chunks. What came of a stream that breaks stays; of one that is wrong, nothing does."""
        federation = self._federation
        current = federation.round
        assert current is not None
        upload = federation.begin(answer, start)
        stream = await upload.begin()
        try:
            while (frame := await self._next_frame(frames, call, stream)) is not None:
                chunk = read_chunk(frame)
                if chunk is None:
                    raise WireError.malformed("after the header only chunks may follow")
                await upload.add(stream, chunk)
            await asyncio.to_thread(upload.check_complete, current.seen)
            await asyncio.to_thread(federation.examine, answer, upload.raw)
        except WireError as error:
            # A stream that was cut may look like one that ended early: what came of it is still good.
            if error.fault is not Fault.TOO_FEW_BYTES:
                federation.drop(answer.name, upload)
            raise
        caller.require_admitted()
        upload.require_current(stream)
        outcome = federation.finish(answer, upload)
        if outcome is not Outcome.ACCEPTED:
            federation.drop(answer.name, upload)
        return outcome

    async def _next_frame(
        self, frames: AsyncIterator[bytes], call: Call, ended: asyncio.Event | None = None
    ) -> bytes | None:
        """A stream without progress must not hold its place for ever; a slow one may take all its time."""
        coming = asyncio.ensure_future(anext(frames, None))
        replaced = asyncio.ensure_future(ended.wait()) if ended is not None else None
        waiting: set[asyncio.Future[Any]] = {coming, *([replaced] if replaced is not None else [])}
        bytes_before = -IDLE_BYTES
        try:
            while not (await asyncio.wait(waiting, timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                bytes_now = self._traffic.progress(call)
                if bytes_now is None or bytes_now - bytes_before < IDLE_BYTES:
                    raise UnavailableError(f"nothing came for {IDLE_S:.0f} s; go on with the update")
                bytes_before = bytes_now
            if not coming.done():
                raise SupersededError("another stream of this client goes on with its update")
            frame = coming.result()
        finally:
            for future in waiting:
                future.cancel()
        return None if frame is None else call.received(frame)

    async def update_progress(self, data: bytes, caller: Caller) -> bytes:
        """How much of an update is here already."""
        with self._traffic.call("UpdateProgress", caller.peer) as call:
            request = parsed(pb.UpdateProgressRequest, call.received(data))
            self._speaks(caller, request.client)
            self._federation.require_run(request.run_id)
            self._federation.heard_of(request.client)
            part = self._federation.part(request.client, request.round, request.update_id)
            if part is not None:
                await part.begin()
            tensor, offset = part.position if part is not None else START
            received = tensor_pb2.Position(tensor=tensor, offset=offset)
            return call.sent(pb.UpdateProgressReply(received=received).SerializeToString())

    async def renew(self, data: bytes, caller: Caller) -> bytes:
        """Takes note of a sign of life."""
        with self._traffic.call("Renew", caller.peer) as call:
            request = parsed(pb.RenewRequest, call.received(data))
            self._speaks(caller, request.client)
            self._federation.require_run(request.run_id)
            self._federation.heard_of(request.client)
            return call.sent(pb.RenewReply().SerializeToString())

    def refuse(self, credential: str, reason: str) -> None:
        """A credential is not good any more: nobody waits for the client that has none but this."""
        name = self._clients.get(credential)
        if name in self._federation.members.by_name and self._credentials.get(name) == credential:
            self._federation.leave(name, reason)

    def _speaks(self, caller: Caller, name: str) -> None:
        """Raises unless this caller may speak for a client; notes by what it is known now."""
        caller.require(name)
        if caller.credential:
            self._credentials[name] = caller.credential
            self._clients[caller.credential] = name

    async def status(self, data: bytes, caller: Caller) -> bytes:
        """What the run is doing."""
        with self._traffic.call("Status", caller.peer) as call:
            parsed(pb.StatusRequest, call.received(data))
            return call.sent(status_reply(self._federation).SerializeToString())


def _answer(header: pb.UpdateHeader) -> Answer:
    known = header.HasField("validation_accuracy")
    return Answer(
        name=header.client,
        round=header.round,
        steps=header.steps,
        examples=header.examples,
        loss=header.loss,
        fingerprint=header.fingerprint,
        declined=printable(header.declined[:200]),
        validation_accuracy=header.validation_accuracy if known else None,
        update_id=header.update_id,
        train_seconds=header.train_seconds,
    )
