"""gRPC to `Federation` and back: decode, call, encode, count bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from common.errors import (
    FedError,
    JoinError,
    SupersededError,
    UnknownClientError,
    WireError,
    WrongRunError,
)
from common.tensors import TensorSpec
from common.wire import PROTOCOL_VERSION, chunk_frames, manifest, read_manifest, require_same
from fedpvr.v1 import federation_pb2 as pb
from fedserver.federation import Answer, Federation, OpenRound, Outcome
from fedserver.members import Member, OwnData

SERVICE = pb.DESCRIPTOR.services_by_name["Federation"].full_name
MAX_UPLOADS = 4
"""Uploads read at a time; the others wait in their clients, so the server's memory stays bounded."""

Context = grpc.aio.ServicerContext[Any, Any]

_CODES: list[tuple[type[FedError], grpc.StatusCode]] = [
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (SupersededError, grpc.StatusCode.ABORTED),
    (JoinError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnknownClientError, grpc.StatusCode.NOT_FOUND),
    (WrongRunError, grpc.StatusCode.FAILED_PRECONDITION),
]


async def _abort(context: Context, error: FedError) -> None:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error))


class Servicer:
    """The `Federation` service of federation.proto."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._traffic = federation.traffic
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Method handlers by name. PullRound yields encoded frames: a broadcast is encoded only once."""
        return {
            "Join": grpc.unary_unary_rpc_method_handler(
                self._unary(self._join), pb.JoinRequest.FromString, pb.JoinReply.SerializeToString
            ),
            "PullRound": grpc.unary_stream_rpc_method_handler(
                self._pull_round, pb.PullRoundRequest.FromString, bytes
            ),
            "PushUpdate": grpc.stream_unary_rpc_method_handler(
                self._push_update, pb.UpdateFrame.FromString, pb.PushUpdateReply.SerializeToString
            ),
            "Status": grpc.unary_unary_rpc_method_handler(
                self._unary(self._status),
                pb.StatusRequest.FromString,
                pb.StatusReply.SerializeToString,
            ),
        }

    def _unary(self, method: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def handle(request: Any, context: Context) -> Any:
            self._traffic.add("up", request.ByteSize())
            try:
                reply = await method(request)
            except FedError as error:
                await _abort(context, error)
            self._traffic.add("down", reply.ByteSize())
            return reply

        return handle

    async def _join(self, request: pb.JoinRequest) -> pb.JoinReply:
        if request.protocol_version != PROTOCOL_VERSION:
            raise WrongRunError(
                f"this server speaks protocol version {PROTOCOL_VERSION}, "
                f"the client {request.protocol_version}; install the same release on both"
            )
        own = request.own_data if request.HasField("own_data") else None
        federation = self._federation
        member = await federation.join(
            request.client, OwnData(own.examples, own.num_classes) if own else None
        )
        model = federation.prepared.model
        return pb.JoinReply(
            run_id=federation.run_id,
            index=member.index,
            num_clients=federation.config.num_clients,
            rounds=federation.config.rounds,
            seed=federation.config.seed,
            model=pb.ModelSpec(**model, fingerprint=federation.fingerprint),
            shard=None
            if member.shard is None
            else pb.Shard(dataset=federation.config.dataset, indices=member.shard),
        )

    async def _pull_round(self, request: pb.PullRoundRequest, context: Context) -> AsyncIterator[bytes]:
        federation = self._federation
        self._traffic.add("up", request.ByteSize())
        try:
            federation.require_run(request.run_id)
            member = federation.members.get(request.client)
            current = await federation.next_round(request.after_round)
        except FedError as error:
            await _abort(context, error)
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
        self, current: OpenRound, member: Member, held_rounds: Any
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
            eta_l=config.eta_l,
            momentum=config.momentum,
            augment=federation.prepared.augment,
            counted_round=counted,
            tensors=tensors,
            algorithm=config.algorithm,
            pull=config.pull,
        )
        if config.local_steps is not None:
            header.local_steps = config.local_steps
        else:
            header.local_epochs = config.local_epochs or 1
        return header, lost

    async def _push_update(
        self, frames: AsyncIterator[pb.UpdateFrame], context: Context
    ) -> pb.PushUpdateReply:
        try:
            reply = await self._take_in(frames)
        except WireError as error:
            reply = pb.PushUpdateReply(
                outcome=pb.PushUpdateReply.REJECTED,
                fault=pb.PushUpdateReply.Fault.Value(error.fault),
                tensor=error.tensor,
                message=str(error),
            )
        except FedError as error:
            await _abort(context, error)
        self._traffic.add("down", reply.ByteSize())
        return reply

    async def _take_in(self, frames: AsyncIterator[pb.UpdateFrame]) -> pb.PushUpdateReply:
        first = await anext(aiter(frames), None)
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
            declined=header.declined[:200],
        )
        outcome = federation.verdict(answer)
        if outcome is None and answer.declined:
            outcome = federation.finish(answer, None)
        if outcome is None:
            require_same(read_manifest(header.tensors), federation.layout)
            async with self._uploads:
                outcome = await self._receive(frames, answer)
        return pb.PushUpdateReply(outcome=pb.PushUpdateReply.Outcome.Value(outcome.name))

    async def _receive(self, frames: AsyncIterator[pb.UpdateFrame], answer: Answer) -> Outcome:
        upload = await asyncio.to_thread(self._federation.begin)
        try:
            async for frame in frames:
                if frame.WhichOneof("frame") != "chunk":
                    raise WireError.malformed("after the header only chunks may follow")
                spec, payload = await asyncio.to_thread(upload.receiver.add, frame.chunk)
                self._traffic.add("up", frame.ByteSize(), spec.purpose, payload)
            await asyncio.to_thread(upload.check_complete)
            return self._federation.finish(answer, upload)
        finally:
            upload.discard()

    async def _status(self, request: pb.StatusRequest) -> pb.StatusReply:
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
