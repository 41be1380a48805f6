"""The client's side of the conversation: protobuf messages in here, plain values outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType

from common.errors import OverdueError, UnavailableError
from common.metrics.message import to_message
from common.records.sites import SiteCounts
from common.tensors.layout import NOTHING, Layout
from common.wire.bundles import BUNDLE_BYTES, bundles
from common.wire.calls import CALLS
from common.wire.chunks import CHUNK_BYTES, PROTOCOL_VERSION, START, Position, sealed
from fedclient.rpc.download import Download
from fedclient.rpc.reasons import told
from fedclient.rpc.replies import PushReply, intact, push_reply
from fedclient.rpc.round_stream import ReceivedRound, RunEnded, UpdateLost, receive_round
from fedclient.rpc.seat import Seat, seat_of
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.transport.base import Transport
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.tensor_pb2 import Position as WirePosition


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
        self.awaiting_rule = ""
        """Under which rule the site has yet to decide; the server is told with every sign of life."""
        self._data_dir = data_dir
        self._takes_bundles = False
        """Whether the server does; one of an earlier release takes one chunk a message."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transport.close()

    def join(self, own_data: tuple[int, tuple[str, ...]] | None, test_examples: int = 0) -> Seat:
        """Takes a seat; waits until all seats are taken. `own_data` is (examples, class names).

        `test_examples` are those of a test set of its own.
        """
        own = pb.OwnData(examples=own_data[0], class_names=own_data[1]) if own_data else None
        request = pb.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            client=self._name,
            own_data=own,
            gives_signs=True,
            evaluates=own is not None,
            test_examples=test_examples,
        )
        reply = intact(pb.JoinReply, self._transport.ask(CALLS["Join"], sealed(request)))
        self.spoke_at = time.monotonic()
        seat = seat_of(reply)
        self._takes_bundles = seat.takes_bundles
        return seat

    def pull(
        self,
        run_id: str,
        after: int,
        held_rounds: list[int],
        model: Layout,
        download: Download,
        frozen: Layout = NOTHING,
    ) -> ReceivedRound | RunEnded | UpdateLost:
        """Waits for the next round and receives it; `model` is what the tensors of x must look like.

        `frozen` are tensors to come along, because they are not here. `download` keeps what came of a stream
        that broke, and lets the next one go on there.
        """
        request = pb.PullRoundRequest(
            run_id=run_id,
            client=self._name,
            after_round=after,
            held_rounds=held_rounds,
            resume=download.resume(),
            takes_bundles=True,
            needs_frozen=bool(frozen.specs),
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
        return receive_round(first.header, frames, model, download, frozen)

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
        request = pb.RenewRequest(
            run_id=seat.run_id, client=self._name, going=going, awaiting_rule=self.awaiting_rule
        )
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

        def messages() -> Iterator[bytes]:
            yield sealed(pb.UpdateFrame(header=header))
            chunk_bytes = self._transport.chunk_bytes
            suits = BUNDLE_BYTES if chunk_bytes == CHUNK_BYTES else chunk_bytes
            for bundle in bundles(
                stored_update.encoding.encoded,
                stored_update.payload,
                start=start,
                chunk_bytes=chunk_bytes,
                checksums=stored_update.checksums,
                most_bytes=suits if self._takes_bundles else 0,
            ):
                yield bundle.data

        return self._pushed(messages())

    def decline(
        self,
        seat: Seat,
        r: int,
        reason: str,
        *,
        leaving: bool = False,
        rule: str = "",
        diverged: bool = False,
    ) -> PushReply:
        """Says that there will be no update for this round or, if `leaving`, for any later one.

        `rule` is the site's, if one forbids it; `diverged`: training left the finite numbers.
        """
        declined = told(reason, self._data_dir)
        header = pb.UpdateHeader(
            run_id=seat.run_id,
            client=self._name,
            round=r,
            declined=declined,
            leaving=leaving,
            refused_rule=rule,
            diverged=diverged,
        )
        return self._pushed(iter([sealed(pb.UpdateFrame(header=header))]))

    def report(self, seat: Seat, r: int, found: SiteCounts) -> PushReply:
        """Answers a round that asks for an evaluation only."""
        evaluation = to_message(found, seat.model.num_classes)
        header = pb.UpdateHeader(
            run_id=seat.run_id,
            client=self._name,
            round=r,
            fingerprint=seat.fingerprint,
            evaluation=evaluation,
        )
        return self._pushed(iter([sealed(pb.UpdateFrame(header=header))]))

    def _pushed(self, frames: Iterator[bytes]) -> PushReply:
        reply = intact(pb.PushUpdateReply, self._transport.push(CALLS["PushUpdate"], frames))
        return push_reply(reply)
