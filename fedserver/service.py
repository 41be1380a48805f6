"""The calls of federation.proto: protobuf messages to `Federation` and back, with every byte counted.

Knows nothing of gRPC: `endpoint` puts it on a server, a simulation calls it directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence

from common.errors import Fault, WireError, WrongRunError
from common.tensors import TensorSpec
from common.wire import PROTOCOL_VERSION, chunk_frames, manifest, read_manifest, require_same
from fedpvr.v1 import federation_pb2 as pb
from fedserver.federation import Answer, Federation, OpenRound, Outcome
from fedserver.members import Member, OwnData

MAX_UPLOADS = 4
"""Uploads read at a time; the others wait in their clients, so the server's memory stays bounded."""
IDLE_S = 60.0
"""An upload without a new frame for this long is given up."""


def _printable(text: str) -> str:
    """A peer's words, fit for one line of a log."""
    return "".join(character if character.isprintable() else " " for character in text[:200])


class Service:
    """Answers the messages of clients. Raises a FedError for what it cannot answer."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._traffic = federation.traffic
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)

    async def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Gives a seat."""
        self._traffic.add("up", request.ByteSize())
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
        reply = pb.JoinReply(
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
        )
        self._traffic.add("down", reply.ByteSize())
        return reply

    async def pull_round(self, request: pb.PullRoundRequest) -> AsyncIterator[bytes]:
        """Encoded `RoundFrame`s of the next round."""
        federation = self._federation
        federation.require_run(request.run_id)
        member = federation.members.get(request.client)
        current = await federation.next_round(request.after_round, member)
        # Counted only now, so that a request belongs to the round it asked for.
        self._traffic.add("up", request.ByteSize())
        if current is None:
            last = federation.last
            finished = pb.Finished(
                round=last.round if last else 0,
                accuracy=last.accuracy if last else 0.0,
                reason=federation.end_reason,
            )
            # Noted first: a client hangs up on this frame, which ends this coroutine at the yield.
            federation.told.add(member.name)
            yield self._control_frame(pb.RoundFrame(finished=finished))
            return
        header, lost = await asyncio.to_thread(self._header, current, member, request.held_rounds)
        yield self._control_frame(pb.RoundFrame(header=header))
        for spec, payload, frame in [*current.frames, *lost]:
            self._traffic.add("down", len(frame), spec.purpose, payload)
            yield frame

    def _control_frame(self, frame: pb.RoundFrame) -> bytes:
        encoded = frame.SerializeToString()
        self._traffic.add("down", len(encoded))
        return encoded

    def _header(
        self, current: OpenRound, member: Member, held_rounds: Sequence[int]
    ) -> tuple[pb.RoundHeader, list[tuple[TensorSpec, int, bytes]]]:
        """The header for one client and, if it does not hold the c_i that counts, the chunks of that."""
        federation = self._federation
        config = federation.config
        counted = federation.ledger.counted.get(member.index, 0)
        tensors = manifest(federation.layout)
        lost: list[tuple[TensorSpec, int, bytes]] = []
        c_i = federation.ledger.read(member.index) if counted not in (0, *held_rounds) else None
        if c_i is not None:
            lost = list(chunk_frames(federation.ledger.variates, c_i, first_index=len(tensors)))
            tensors += manifest(federation.ledger.variates)
        header = pb.RoundHeader(
            round=current.number,
            rounds=config.rounds,
            batch_size=config.batch_size or 0,
            eta_l=federation.eta_l(current.number),
            momentum=config.momentum,
            augment=federation.prepared.augment,
            counted_round=counted,
            tensors=tensors,
            algorithm=config.algorithm,
            pull=config.pull,
            validation=config.validation,
        )
        if config.local_steps is not None:
            header.local_steps = config.local_steps
        else:
            header.local_epochs = config.local_epochs or 1
        return header, lost

    async def push_update(self, frames: AsyncIterable[pb.UpdateFrame]) -> pb.PushUpdateReply:
        """Takes in an update, or says what is wrong with it."""
        try:
            reply = await self._take_in(aiter(frames))
        except WireError as error:
            reply = pb.PushUpdateReply(
                outcome=pb.PushUpdateReply.REJECTED,
                fault=pb.PushUpdateReply.Fault.Value(error.fault),
                tensor=error.tensor,
                message=str(error),
            )
        self._traffic.add("down", reply.ByteSize())
        return reply

    async def _take_in(self, frames: AsyncIterator[pb.UpdateFrame]) -> pb.PushUpdateReply:
        first = await self._next_frame(frames)
        if first is None or first.WhichOneof("frame") != "header":
            raise WireError.malformed("an update starts with a header frame")
        self._traffic.add("up", first.ByteSize())
        federation = self._federation
        header = first.header
        federation.require_run(header.run_id)
        answer = Answer(
            name=header.client,
            round=header.round,
            steps=header.steps,
            examples=header.examples,
            loss=header.loss,
            fingerprint=header.fingerprint,
            declined=_printable(header.declined),
            validation_accuracy=header.validation_accuracy
            if header.HasField("validation_accuracy")
            else None,
        )
        if header.leaving:
            federation.leave(answer.name, answer.declined or "no reason given")
            return pb.PushUpdateReply(outcome=pb.PushUpdateReply.ACCEPTED)
        outcome = federation.verdict(answer)
        if outcome is None and answer.declined:
            outcome = federation.finish(answer, None)
        if outcome is None:
            require_same(read_manifest(header.tensors), federation.layout)
            async with self._uploads:
                outcome = await self._receive(frames, answer)
        return pb.PushUpdateReply(outcome=pb.PushUpdateReply.Outcome.Value(outcome.name))

    async def _receive(self, frames: AsyncIterator[pb.UpdateFrame], answer: Answer) -> Outcome:
        upload = self._federation.begin()
        try:
            while (frame := await self._next_frame(frames)) is not None:
                if frame.WhichOneof("frame") != "chunk":
                    raise WireError.malformed("after the header only chunks may follow")
                spec, payload = await asyncio.to_thread(upload.receiver.add, frame.chunk)
                self._traffic.add("up", frame.ByteSize(), spec.purpose, payload)
            await asyncio.to_thread(upload.check_complete)
            return self._federation.finish(answer, upload)
        finally:
            upload.discard()

    async def _next_frame(self, frames: AsyncIterator[pb.UpdateFrame]) -> pb.UpdateFrame | None:
        """A stream without progress must not hold its place for ever."""
        try:
            async with asyncio.timeout(IDLE_S):
                return await anext(frames, None)
        except TimeoutError:
            raise WireError(Fault.TOO_FEW_BYTES, f"nothing came for {IDLE_S:.0f} s; push again") from None

    async def status(self, request: pb.StatusRequest) -> pb.StatusReply:
        """What the run is doing."""
        self._traffic.add("up", request.ByteSize())
        federation = self._federation
        config = federation.config
        reply = pb.StatusReply(
            run_id=federation.run_id,
            algorithm=config.algorithm,
            model=config.model,
            dataset=config.dataset,
            phase=pb.StatusReply.Phase.Value(federation.phase.name),
            round=federation.round.number if federation.round else 0,
            rounds=config.rounds,
            num_clients=config.num_clients,
            clients=self._client_status(),
            bytes=[
                pb.TrafficCount(direction=direction, purpose=purpose, bytes=count)
                for direction, counts in self._traffic.total().items()
                for purpose, count in counts.items()
            ],
        )
        if federation.last is not None:
            last = federation.last
            reply.last.CopyFrom(pb.RoundResult(round=last.round, accuracy=last.accuracy, loss=last.loss))
        self._traffic.add("down", reply.ByteSize())
        return reply

    def _client_status(self) -> list[pb.ClientStatus]:
        federation = self._federation
        waiting = [pb.ClientStatus(name=name, state="waiting") for name in federation.members.waiting]
        members = sorted(federation.members.by_name.values(), key=lambda member: member.index)
        return waiting + [
            pb.ClientStatus(
                name=member.name,
                index=member.index,
                examples=member.examples,
                counted_round=federation.ledger.counted.get(member.index, 0),
                state="answered"
                if federation.round is None or federation.round.answers[member.index].done()
                else "training",
            )
            for member in members
        ]
