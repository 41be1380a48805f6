"""The client's side of the conversation: gRPC in here, plain values outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

import grpc

from common.algorithms import ALGORITHMS
from common.errors import (
    Fault,
    FedError,
    JoinError,
    RunError,
    SupersededError,
    UnavailableError,
    UnknownClientError,
    WireError,
    WrongRunError,
)
from common.models import ModelSpec
from common.tensors import Flat, Layout, Purpose
from common.wire import (
    PROTOCOL_VERSION,
    Receiver,
    chunk_frames,
    manifest,
    read_manifest,
    require_same,
)
from fedclient.train import Task, Update
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.federation_pb2_grpc import FederationStub
from fedpvr.v1.tensor_pb2 import TensorChunk

_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A client waits for hours in one call; pings tell a slow server from a dead one.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_ERRORS: dict[grpc.StatusCode, type[FedError]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: JoinError,
    grpc.StatusCode.ABORTED: SupersededError,
    grpc.StatusCode.NOT_FOUND: UnknownClientError,
    grpc.StatusCode.FAILED_PRECONDITION: WrongRunError,
    grpc.StatusCode.INVALID_ARGUMENT: RunError,
    grpc.StatusCode.UNIMPLEMENTED: WrongRunError,
}


@dataclass(frozen=True)
class Seat:
    """What a client learns by joining."""

    run_id: str
    index: int
    num_clients: int
    seed: int
    model: ModelSpec
    fingerprint: str
    dataset: str | None
    """None for a client with data of its own."""
    indices: list[int]


@dataclass(frozen=True)
class Pulled:
    """A round as it came from the server."""

    task: Task
    counted_round: int
    lost_variate: Flat | None
    """c_i from the server's ledger, for a client that no longer holds it."""


@dataclass(frozen=True)
class Ended:
    """The run is over."""

    round: int
    accuracy: float
    reason: str


@dataclass(frozen=True)
class Reply:
    """What the server made of an update: ACCEPTED, DUPLICATE, LATE or REJECTED."""

    outcome: str
    fault: Fault | None
    message: str


class Connection:
    """A client's channel to the server of its run."""

    def __init__(self, server: str, name: str) -> None:
        self._server = server
        self._name = name
        self._channel = grpc.insecure_channel(server, options=_OPTIONS)
        self._stub = FederationStub(self._channel)
        self._push = self._channel.stream_unary(
            f"/{pb.DESCRIPTOR.services_by_name['Federation'].full_name}/PushUpdate",
            request_serializer=bytes,
            response_deserializer=pb.PushUpdateReply.FromString,
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def join(self, own_data: tuple[int, int] | None) -> Seat:
        """Takes a seat; waits until all seats are taken. `own_data` is (examples, classes)."""
        own = pb.OwnData(examples=own_data[0], num_classes=own_data[1]) if own_data else None
        with self._mapped_errors():
            reply = self._stub.Join(
                pb.JoinRequest(protocol_version=PROTOCOL_VERSION, client=self._name, own_data=own)
            )
        return Seat(
            run_id=reply.run_id,
            index=reply.index,
            num_clients=reply.num_clients,
            seed=reply.seed,
            model=ModelSpec(
                name=reply.model.name,
                num_classes=reply.model.num_classes,
                image_shape=tuple(reply.model.image_shape),
                dtype=reply.model.dtype,
            ),
            fingerprint=reply.model.fingerprint,
            dataset=reply.shard.dataset if reply.HasField("shard") else None,
            indices=list(reply.shard.indices),
        )

    def pull(self, run_id: str, after: int, held_rounds: list[int], model: Layout) -> Pulled | Ended:
        """Waits for the next round and receives it; `model` is what the tensors of x must look like."""
        with self._mapped_errors():
            frames = self._stub.PullRound(
                pb.PullRoundRequest(
                    run_id=run_id, client=self._name, after_round=after, held_rounds=held_rounds
                )
            )
            first = next(frames, pb.RoundFrame())
            kind = first.WhichOneof("frame")
            if kind == "finished":
                end = first.finished
                return Ended(end.round, end.accuracy, end.reason)
            if kind != "header":
                raise UnavailableError(f"the server at {self._server} closed the stream without a header")
            return _receive(first.header, (frame.chunk for frame in frames), model)

    def push(self, seat: Seat, update: Update, layout: Layout, examples: int) -> Reply:
        """Hands in an update."""
        header = pb.UpdateHeader(
            run_id=seat.run_id,
            client=self._name,
            round=update.round,
            update_id=f"{seat.run_id}-{seat.index}-{update.round}",
            steps=update.steps,
            examples=examples,
            loss=update.loss,
            fingerprint=seat.fingerprint,
            tensors=manifest(layout),
        )

        def frames() -> Iterator[bytes]:
            yield pb.UpdateFrame(header=header).SerializeToString()
            for _, _, frame in chunk_frames(layout, update.up):
                yield frame

        return self._pushed(frames())

    def decline(self, seat: Seat, r: int, reason: str) -> Reply:
        """Says that there will be no update for this round."""
        header = pb.UpdateHeader(run_id=seat.run_id, client=self._name, round=r, declined=reason)
        return self._pushed(iter([pb.UpdateFrame(header=header).SerializeToString()]))

    def _pushed(self, frames: Iterator[bytes]) -> Reply:
        with self._mapped_errors():
            reply = self._push(frames)
        fault = Fault(pb.PushUpdateReply.Fault.Name(reply.fault)) if reply.fault else None
        return Reply(pb.PushUpdateReply.Outcome.Name(reply.outcome), fault, reply.message)

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or "no reason given"
            if code in _ERRORS:
                raise _ERRORS[code](details) from error
            raise UnavailableError(f"no server answers at {self._server} ({code.name}: {details})") from error


def _receive(header: pb.RoundHeader, chunks: Iterator[TensorChunk], model: Layout) -> Pulled:
    announced = read_manifest(header.tensors)
    layout = announced.part(Purpose.MODEL, Purpose.BUFFER, Purpose.CONTROL)
    require_same(announced.part(Purpose.MODEL, Purpose.BUFFER), model)
    control = layout.part(Purpose.CONTROL)
    own = announced.part(Purpose.CLIENT_CONTROL)
    known = {spec.name: spec for spec in model.specs if spec.purpose is Purpose.MODEL}
    for spec in control.specs:
        match = known.get(spec.name)
        if match is None or (spec.dtype, spec.shape) != (match.dtype, match.shape):
            raise WireError(Fault.UNKNOWN_TENSOR, "is not a parameter of the model", spec.name)
    if announced.specs != (*layout.specs, *own.specs):
        raise WireError.malformed("the tensors of x, c and c_i must come in this order")
    if header.algorithm not in ALGORITHMS:
        raise WrongRunError(
            f"the run uses {header.algorithm!r}, this client knows {', '.join(ALGORITHMS)}; update it"
        )
    algorithm = ALGORITHMS[header.algorithm]
    if own.specs and own.specs != algorithm.variates(layout).specs:
        raise WireError.malformed("the client's variate must have the tensors that the algorithm keeps")
    flat = announced.allocate()
    receiver = Receiver(announced, flat)
    for chunk in chunks:
        receiver.add(chunk)
    receiver.finish()
    work = header.WhichOneof("work")
    task = Task(
        round=header.round,
        local_epochs=header.local_epochs if work == "local_epochs" else None,
        local_steps=header.local_steps if work == "local_steps" else None,
        batch_size=header.batch_size or None,
        eta_l=header.eta_l,
        momentum=header.momentum,
        augment=header.augment,
        algorithm=algorithm,
        pull=header.pull,
        layout=layout,
        down=flat[: layout.num_bytes],
    )
    return Pulled(task, header.counted_round, flat[layout.num_bytes :] if own.specs else None)
