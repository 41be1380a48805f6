"""Targets: what a client reads from a server that may say anything."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass

from common.errors import FedError, UnavailableError
from common.wire.bundles import bundles
from common.wire.calls import Call
from common.wire.chunks import parsed
from common.wire.codec_choice import Codecs
from common.wire.encoding import downward
from common.wire.manifest import manifest
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.seat import Seat
from fedclient.store.stored_update import Sender, StoredUpdate
from fedpvr.v1 import federation_pb2 as pb
from fedserver.console.status import status_of
from fedserver.console.tables import show_status
from tests.fuzz import known, mutators
from tests.fuzz.frames import packed, unpacked
from tests.fuzz.target import Target


@dataclass
class _Server:
    """A transport that hands out prepared answers."""

    answers: list[bytes]
    breaks: bool = False
    """Whether a stream ends with a lost connection."""
    chunk_bytes = 40

    def ask(self, call: Call, request: bytes) -> bytes:
        """Whatever is there."""
        return self.answers[0]

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """Whatever is there."""
        yield from self.answers
        if self.breaks:
            raise UnavailableError("the connection is lost")

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """Reads everything, then whatever is there."""
        list(frames)
        return self.answers[0]

    def close(self) -> None:
        """Nothing to hang up."""


def pull(data: bytes) -> None:
    """Rounds of the known model, one after the other; an empty frame ends a stream, which may then go on."""
    download = Download()
    streams: list[list[bytes]] = [[]]
    for frame in unpacked(data):
        if frame:
            streams[-1].append(frame)
        else:
            streams.append([])
    for after, frames in enumerate(streams):
        connection = Connection(_Server(frames, breaks=after + 1 < len(streams)), known.CLIENT)
        try:
            connection.pull(known.RUN_ID, after, [], known.MODEL, download)
        except UnavailableError:
            continue


def pull_seeds() -> list[bytes]:
    """Broadcasts, with a variate, one that goes on, and the other answers."""
    found = [packed(known.broadcast(config)) for config in known.CONFIGS]
    config = known.CONFIGS[0]
    whole = known.round_header(downward(known.LAYOUT, Codecs()), config)
    whole.tensors.extend(manifest(downward(known.VARIATES, Codecs())))
    variates = bundles(known.VARIATES, known.VARIATES.allocate(), first_index=len(known.LAYOUT.specs))
    header = pb.RoundFrame(header=whole).SerializeToString()
    found.append(packed([header, *known.sent(known.PLAIN_CODING), *(message.data for message in variates)]))
    first, *frames = known.broadcast(config)
    resumed = pb.RoundFrame.FromString(first)
    resumed.header.resumed_at.offset = 40
    found.append(packed([first, frames[0], b"", resumed.SerializeToString(), *frames[1:]]))
    found.append(packed([pb.RoundFrame(finished=pb.Finished(round=3)).SerializeToString()]))
    found.append(packed([pb.RoundFrame(resend=pb.Resend(round=3)).SerializeToString()]))
    return found


def reply(data: bytes) -> None:
    """Answers to the other calls; the first byte chooses which."""
    connection = Connection(_Server([data[1:]]), known.CLIENT)
    match data[0] % 3 if data else 0:
        case 0:
            connection.join(None)
        case 1:
            connection.decline(SEAT, 1, "no reason")
        case _:
            _go_on(connection)


def _go_on(connection: Connection) -> None:
    """Asks how much of an update is there, and goes on from there."""
    encoding = known.up(known.CONFIGS[0])
    stored_update = StoredUpdate(1, encoding, encoding.encoded.allocate(), 1, 0.5, None, 0.1)
    start = connection.progress(SEAT, stored_update)
    try:
        connection.push(Sender(known.RUN_ID, known.CLIENT, SEAT.fingerprint, 3), stored_update, start)
    except FedError:
        return


_JOINED = pb.JoinReply(
    run_id=known.RUN_ID,
    index=1,
    num_clients=2,
    model=pb.ModelSpec(name="m:f", num_classes=2, image_shape=[4], dtype="float32", mean=[0.5], std=[1]),
    shard=pb.Shard(dataset="digits", indices=[1, 2]),
)
SEAT: Seat = Connection(_Server([_JOINED.SerializeToString()]), known.CLIENT).join(None)


def reply_seeds() -> list[bytes]:
    """One of each."""
    rejected = pb.PushUpdateReply(
        outcome=pb.PushUpdateReply.REJECTED, fault=pb.PushUpdateReply.MALFORMED, tensor="w", message="no"
    )
    progress = pb.UpdateProgressReply()
    progress.received.tensor = 1
    replies = (_JOINED, rejected, progress)
    return [bytes([k]) + message.SerializeToString() for k, message in enumerate(replies)]


def status(data: bytes) -> None:
    """What a server says of its run, through to the screen."""
    with redirect_stdout(io.StringIO()):
        show_status(status_of(parsed(pb.StatusReply, data)))


def status_seeds() -> list[bytes]:
    """A run that goes on."""
    found = pb.StatusReply(
        run_id=known.RUN_ID,
        model="m:f",
        phase=pb.StatusReply.TRAINING,
        clients=[pb.ClientStatus(name="a", index=1, examples=2, state="training")],
        last=pb.RoundResult(round=1, accuracy=0.5, loss=1.5),
        bytes=[pb.TrafficCount(direction="down", purpose="model", bytes=9)],
        traffic=[pb.ClientTraffic(client="a", direction="up", payload=1, encoded=2, socket=3)],
    )
    return [found.SerializeToString()]


TARGETS = {
    "status": Target(status, status_seeds, mutators.message),
    "pull": Target(pull, pull_seeds, mutators.messages),
    "reply": Target(reply, reply_seeds, mutators.tagged_message),
}
