"""The client's side of the conversation: protobuf messages in here, plain values outside."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from common.algorithms import ALGORITHMS
from common.errors import Fault, UnavailableError, WireError, WrongRunError
from common.models.build import ModelSpec
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat, Layout, Purpose
from common.wire.chunks import PROTOCOL_VERSION, START, Position, chunk_frames, name_of, parsed, read_chunk
from common.wire.codecs import DERIVED
from common.wire.encoding import Encoding
from common.wire.manifest import read_manifest, require_same
from fedclient.rpc.download import Download
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.training.train import Task
from fedclient.transport.grpc_transport import Transport
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.tensor_pb2 import Position as WirePosition

ON_THE_WAY = (
    Fault.BAD_CHECKSUM,
    Fault.WRONG_OFFSET,
    Fault.MALFORMED,
    Fault.UNKNOWN_TENSOR,
    Fault.TOO_MANY_BYTES,
    Fault.TOO_FEW_BYTES,
)
"""What a bad link can do to good chunks: worth another try."""


@dataclass(frozen=True)
class Seat:
    """What a client learns by joining."""

    run_id: str
    index: int
    num_clients: int
    seed: int
    model: ModelSpec
    fingerprint: str
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dataset: str | None
    """None for a client with data of its own."""
    indices: list[int]
    lease_s: float = 0.0
    """A client that is silent for longer is not waited for; 0: there is no such limit."""


@dataclass(frozen=True)
class Pulled:
    """A round as it came from the server."""

    task: Task
    derives_c: bool
    """c did not come with the round; it is to be computed."""
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
class Resend:
    """The server has lost this client's update for a round."""

    round: int


@dataclass(frozen=True)
class Reply:
    """What the server made of an update: ACCEPTED, DUPLICATE, LATE or REJECTED."""

    outcome: str
    fault: Fault | None
    message: str


class Connection:
    """A client's conversation with the server of its run."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transport.close()

    def join(self, own_data: tuple[int, tuple[str, ...]] | None) -> Seat:
        """Takes a seat; waits until all seats are taken. `own_data` is (examples, class names)."""
        own = pb.OwnData(examples=own_data[0], class_names=own_data[1]) if own_data else None
        request = pb.JoinRequest(protocol_version=PROTOCOL_VERSION, client=self._name, own_data=own)
        reply = parsed(pb.JoinReply, self._transport.join(request.SerializeToString()))
        if not re.fullmatch(r"[0-9a-f]{1,64}", reply.run_id):
            raise WireError.malformed(f"a run id has hexadecimal digits, got {reply.run_id!r}")
        if not 0 <= reply.lease_seconds < math.inf:
            raise WireError.malformed(f"a lease has a length in seconds, got {reply.lease_seconds}")
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
                width=reply.model.width,
            ),
            fingerprint=reply.model.fingerprint,
            class_names=tuple(reply.model.class_names),
            mean=tuple(reply.model.mean),
            std=tuple(reply.model.std),
            dataset=reply.shard.dataset if reply.HasField("shard") else None,
            indices=list(reply.shard.indices),
            lease_s=reply.lease_seconds,
        )

    def pull(
        self, run_id: str, after: int, held_rounds: list[int], model: Layout, download: Download
    ) -> Pulled | Ended | Resend:
        """Waits for the next round and receives it; `model` is what the tensors of x must look like.

        `download` keeps what came of a stream that broke, and lets the next one go on there.
        """
        request = pb.PullRoundRequest(
            run_id=run_id,
            client=self._name,
            after_round=after,
            held_rounds=held_rounds,
            resume=download.resume(),
        )
        frames = self._transport.pull(request.SerializeToString())
        first = parsed(pb.RoundFrame, next(frames, b""))
        kind = first.WhichOneof("frame")
        if kind == "finished":
            end = first.finished
            return Ended(end.round, end.accuracy, end.reason)
        if kind == "resend":
            return Resend(first.resend.round)
        if kind != "header":
            raise UnavailableError("the server closed the stream without a header")
        return _receive(first.header, frames, model, download)

    def renew(self, seat: Seat) -> None:
        """Gives a sign of life."""
        request = pb.RenewRequest(run_id=seat.run_id, client=self._name)
        parsed(pb.RenewReply, self._transport.renew(request.SerializeToString()))

    def progress(self, seat: Seat, stored_update: StoredUpdate) -> Position:
        """How much of an update the server already has."""
        request = pb.UpdateProgressRequest(
            run_id=seat.run_id, client=self._name, round=stored_update.round, update_id=stored_update.id
        )
        reply = parsed(pb.UpdateProgressReply, self._transport.progress(request.SerializeToString()))
        return reply.received.tensor, reply.received.offset

    def push(self, sender: Sender, stored_update: StoredUpdate, start: Position = START) -> Reply:
        """Hands in an update, or what is missing of it from `start` on."""
        header = stored_update.header(sender)
        if start != START:
            header.resume_from.CopyFrom(WirePosition(tensor=start[0], offset=start[1]))

        def frames() -> Iterator[bytes]:
            yield pb.UpdateFrame(header=header).SerializeToString()
            chunk_bytes = self._transport.chunk_bytes
            for frame in chunk_frames(
                stored_update.encoding.encoded, stored_update.up, start=start, chunk_bytes=chunk_bytes
            ):
                yield frame.data

        return self._pushed(frames())

    def decline(self, seat: Seat, r: int, reason: str, *, leaving: bool = False) -> Reply:
        """Says that there will be no update for this round or, if `leaving`, for any later one."""
        header = pb.UpdateHeader(
            run_id=seat.run_id, client=self._name, round=r, declined=reason, leaving=leaving
        )
        return self._pushed(iter([pb.UpdateFrame(header=header).SerializeToString()]))

    def _pushed(self, frames: Iterator[bytes]) -> Reply:
        reply = parsed(pb.PushUpdateReply, self._transport.push(frames))
        fault = Fault(name_of(pb.PushUpdateReply.Fault.Name, reply.fault)) if reply.fault else None
        return Reply(name_of(pb.PushUpdateReply.Outcome.Name, reply.outcome), fault, reply.message)


def _receive(header: pb.RoundHeader, frames: Iterator[bytes], model: Layout, download: Download) -> Pulled:
    announced = read_manifest(header.tensors)
    layout = _checked_layout(announced, model)
    if header.algorithm not in ALGORITHMS:
        raise WrongRunError(
            f"the run uses {header.algorithm!r}, this client knows {', '.join(ALGORITHMS)}; update it"
        )
    algorithm = ALGORITHMS[header.algorithm]
    own = announced.layout.part(Purpose.CLIENT_CONTROL)
    if own.specs and own.specs != algorithm.variates(layout).specs:
        raise WireError.malformed("the client's variate must have the tensors that the algorithm keeps")
    update_reader = UpdateReader(
        layout, algorithm, header.update_codec or "fp32", header.control_codec or "fp32", header.derived
    )
    download.begin(header, announced)
    _receive_chunks(frames, download)
    flat = announced.decode(download.finish(), None)
    work = header.WhichOneof("work")
    task = Task(
        round=header.round,
        local_epochs=header.local_epochs if work == "local_epochs" else None,
        local_steps=header.local_steps if work == "local_steps" else None,
        batch_size=header.batch_size or None,
        eta_l=header.eta_l,
        momentum=header.momentum,
        augment=header.augment,
        validation=header.validation,
        algorithm=algorithm,
        prox_weight=header.prox_weight,
        layout=layout,
        down=flat[: layout.num_bytes],
        up=update_reader.encoding,
    )
    return Pulled(
        task,
        any(tensor_encoding.codec == DERIVED for tensor_encoding in announced.tensor_encodings),
        header.counted_round,
        flat[layout.num_bytes :] if own.specs else None,
    )


def _receive_chunks(frames: Iterator[bytes], download: Download) -> None:
    for frame in frames:
        try:
            chunk = read_chunk(frame)
            if chunk is None:
                raise WireError.malformed("after the header only chunks may follow")
            download.add(chunk)
        except WireError as error:
            if error.fault not in ON_THE_WAY:
                raise
            raise UnavailableError(f"{error}; asking for it again") from error


def _checked_layout(announced: Encoding, model: Layout) -> Layout:
    """The layout of x, buffers and c, after checking that all of it belongs to the model."""
    layout = announced.layout.part(Purpose.MODEL, Purpose.BUFFER, Purpose.CONTROL)
    came = announced.layout.part(Purpose.MODEL, Purpose.BUFFER)
    require_same(Encoding(came), Encoding(model))
    known = {spec.name: spec for spec in model.specs if spec.purpose is Purpose.MODEL}
    for k in layout.indices(Purpose.CONTROL):
        spec = layout.specs[k]
        match = known.get(spec.name)
        if match is None or (spec.dtype, spec.shape) != (match.dtype, match.shape):
            raise WireError(Fault.UNKNOWN_TENSOR, "is not a parameter of the model", spec.name)
    own = announced.layout.part(Purpose.CLIENT_CONTROL)
    if announced.layout.specs != (*layout.specs, *own.specs):
        raise WireError.malformed("the tensors of x, c and c_i must come in this order")
    for spec, tensor_encoding in zip(announced.layout.specs, announced.tensor_encodings, strict=True):
        if tensor_encoding.difference or (
            tensor_encoding.codec == DERIVED and spec.purpose is not Purpose.CONTROL
        ):
            raise WireError(Fault.MALFORMED, "must come whole, not as a difference or derived", spec.name)
    return layout
