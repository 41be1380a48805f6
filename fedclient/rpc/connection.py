"""The client's side of the conversation: protobuf messages in here, plain values outside."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from common.errors import DamagedError, Fault, OverdueError, UnavailableError, WireError
from common.models.spec import ModelSpec
from common.tensors.layout import Layout
from common.wire.calls import CALLS
from common.wire.chunks import (
    PROTOCOL_VERSION,
    START,
    M,
    Position,
    chunk_frames,
    name_of,
    parsed,
    sealed,
)
from fedclient.rpc.download import Download
from fedclient.rpc.reasons import told
from fedclient.rpc.round_stream import ReceivedRound, RunEnded, UpdateLost, receive_round
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.transport.base import Transport
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.tensor_pb2 import Position as WirePosition

MAX_SHARD = 1 << 24
"""Examples; their numbers make a message of almost the largest size."""


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
    sign_s: float = 0.0
    """A client that works gives a sign of life so often; 0: the server asks for none."""


@dataclass(frozen=True)
class PushReply:
    """What the server made of an update: ACCEPTED, DUPLICATE, LATE or REJECTED."""

    outcome: str
    fault: Fault | None
    message: str


class Connection:
    """A client's conversation with the server of its run."""

    def __init__(self, transport: Transport, name: str, data_dir: str = "data") -> None:
        """`data_dir` is not named to the server."""
        self._transport = transport
        self._name = name
        self.waiting = False
        """Whether a call for a round is open that the server has not answered."""
        self.spoke_at = time.monotonic()
        """When the server last heard something, or answered what it was asked."""
        self._data_dir = data_dir

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
        request = pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION, client=self._name, own_data=own, gives_signs=True
        )
        reply = intact(pb.JoinReply, self._transport.ask(CALLS["Join"], sealed(request)))
        if not re.fullmatch(r"[0-9a-f]{1,64}", reply.run_id):
            raise WireError.broken_contract(f"a run id has hexadecimal digits, got {reply.run_id[:64]!r}")
        self.spoke_at = time.monotonic()
        if not 0 <= reply.lease_seconds < math.inf:
            raise WireError.broken_contract(f"a lease has a length in seconds, got {reply.lease_seconds}")
        if not 0 <= reply.sign_seconds < math.inf:
            raise WireError.broken_contract(f"signs are seconds apart, got {reply.sign_seconds}")
        if len(reply.shard.indices) > MAX_SHARD:
            raise WireError.broken_contract(f"a shard has {MAX_SHARD} examples at the most")
        return Seat(
            run_id=reply.run_id,
            index=reply.index,
            num_clients=reply.num_clients,
            seed=reply.seed,
            model=model_spec(reply.model),
            fingerprint=reply.model.fingerprint,
            class_names=tuple(reply.model.class_names),
            mean=tuple(reply.model.mean),
            std=tuple(reply.model.std),
            dataset=reply.shard.dataset if reply.HasField("shard") else None,
            indices=list(reply.shard.indices),
            lease_s=reply.lease_seconds,
            sign_s=reply.sign_seconds,
        )

    def pull(
        self, run_id: str, after: int, held_rounds: list[int], model: Layout, download: Download
    ) -> ReceivedRound | RunEnded | UpdateLost:
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
        self.waiting = True
        try:
            first, frames = self._opened(sealed(request))
        finally:
            self.waiting, self.spoke_at = False, time.monotonic()
        kind = first.WhichOneof("frame")
        if kind == "finished":
            end = first.finished
            best = (end.best.round, end.best.accuracy) if end.HasField("best") else None
            took_part = end.took_part if end.HasField("took_part") else None
            return RunEnded(end.round, end.accuracy, end.reason, best, took_part)
        if kind == "resend":
            return UpdateLost(first.resend.round)
        if kind != "header":
            raise UnavailableError("the server closed the stream without a header")
        return receive_round(first.header, frames, model, download)

    def _opened(self, request: bytes) -> tuple[pb.RoundFrame, Iterator[bytes]]:
        """The first frame of a round, however long it takes, and the others; asks again if it may be lost."""
        while True:
            frames = self._transport.pull(CALLS["PullRound"], request)
            try:
                return intact(pb.RoundFrame, next(frames, b"")), frames
            except OverdueError:
                continue

    def renew(self, seat: Seat, *, going: bool = False) -> None:
        """Gives a sign of life or, if `going`, says good-bye: the process ends, and may come back."""
        self.spoke_at = time.monotonic()
        request = pb.RenewRequest(run_id=seat.run_id, client=self._name, going=going)
        intact(pb.RenewReply, self._transport.ask(CALLS["Renew"], sealed(request)))

    def progress(self, seat: Seat, stored_update: StoredUpdate) -> Position:
        """How much of an update the server already has."""
        request = pb.UpdateProgressRequest(
            run_id=seat.run_id, client=self._name, round=stored_update.round, update_id=stored_update.id
        )
        data = self._transport.ask(CALLS["UpdateProgress"], sealed(request))
        reply = intact(pb.UpdateProgressReply, data)
        return reply.received.tensor, reply.received.offset

    def push(self, sender: Sender, stored_update: StoredUpdate, start: Position = START) -> PushReply:
        """Hands in an update, or what is missing of it from `start` on."""
        header = stored_update.header(sender)
        if start != START:
            header.resume_from.CopyFrom(WirePosition(tensor=start[0], offset=start[1]))

        def frames() -> Iterator[bytes]:
            yield sealed(pb.UpdateFrame(header=header))
            chunk_bytes = self._transport.chunk_bytes
            for frame in chunk_frames(
                stored_update.encoding.encoded, stored_update.payload, start=start, chunk_bytes=chunk_bytes
            ):
                yield frame.data

        return self._pushed(frames())

    def decline(self, seat: Seat, r: int, reason: str, *, leaving: bool = False) -> PushReply:
        """Says that there will be no update for this round or, if `leaving`, for any later one."""
        declined = told(reason, self._data_dir)
        header = pb.UpdateHeader(
            run_id=seat.run_id, client=self._name, round=r, declined=declined, leaving=leaving
        )
        return self._pushed(iter([sealed(pb.UpdateFrame(header=header))]))

    def _pushed(self, frames: Iterator[bytes]) -> PushReply:
        reply = intact(pb.PushUpdateReply, self._transport.push(CALLS["PushUpdate"], frames))
        outcome = name_of(pb.PushUpdateReply.Outcome.Name, reply.outcome)
        return PushReply(outcome, _fault(reply.fault), reply.message)


def model_spec(message: pb.ModelSpec) -> ModelSpec:
    """What a server says of its model, not looked at yet."""
    return ModelSpec(
        name=message.name,
        num_classes=message.num_classes,
        image_shape=tuple(message.image_shape),
        dtype=message.dtype,
        width=message.width,
    )


def intact(kind: type[M], data: bytes) -> M:
    """A message of this kind; one that a bad link has damaged is worth another try."""
    try:
        return parsed(kind, data)
    except DamagedError as error:
        raise UnavailableError(f"{error}; asking again") from error


def _fault(number: int) -> Fault | None:
    """None for one that only a newer server knows: its message says what it is, and it is not retried."""
    known = number in pb.PushUpdateReply.Fault.values()
    name = pb.PushUpdateReply.Fault.Name(number) if known else ""  # type: ignore[arg-type]
    return Fault(name) if name in Fault.__members__ else None
