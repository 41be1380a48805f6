"""Targets: captures of messages, packet captures, and HTTP/2 on its own."""

from __future__ import annotations

import gzip
import struct
from contextlib import suppress

from hpack import Encoder

from common.errors import FedError
from common.events import unheard
from common.wire.calls import SERVICE
from common.wire.capture import CaptureWriter
from common.wire.messages import ClassifiedMessage, Content
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.tensor_pb2 import CODEC_DERIVED
from fedwire.diff import differences
from fedwire.export import export
from fedwire.message import inspect
from fedwire.pcap.http2 import PREFACE, Http2, UndecodableError
from fedwire.pcap.packets import grpc_messages
from fedwire.replay.replay import Replay
from fedwire.source import Capture, convert
from fedwire.stats import statistics
from fedwire.timeline.page import timeline_page
from fedwire.timeline.timeline import timeline
from fedwire.transfers import Transfers
from tests import captures as packet_captures
from tests.fuzz import known, mutators
from tests.fuzz.mutators import script, scripted
from tests.fuzz.target import Target

_EVERY = 8
"""One message of so many is looked at closely; each look reads the whole capture."""


def capture(data: bytes) -> None:
    """A capture file, through to its tensors, and as one that is written on."""
    path = known.file_with(data, "run.fedwire")
    with Capture(path, _unheard) as found:
        everything = Transfers(found)
        for transfer in everything:
            with suppress(FedError):
                everything.values(transfer)
    CaptureWriter(path, unheard).close()


def commands(data: bytes) -> None:
    """The same through every command that reads captures."""
    with Capture(known.file_with(data, "run.fedwire"), _unheard) as found:
        statistics(found)
        for number in range(len(data) % _EVERY, len(found.messages), _EVERY):
            with suppress(FedError):
                inspect(found, number)
        differences(found, found)
        timeline_page(timeline(found), "run.fedwire").html()
        export(found, known.folder() / "tensors", None, None, _unheard)
        Replay(found, None).run()


def _unheard(line: str) -> None:
    """Nobody is told."""


def _captured(messages: list[tuple[str, int, bool, bytes]]) -> bytes:
    path = known.folder() / "seed.fedwire"
    path.unlink(missing_ok=True)
    writer = CaptureWriter(path, unheard)
    for rpc, call, up, data in messages:
        writer.write(rpc, call, ClassifiedMessage(10**18, up, data, Content("request"), known.CLIENT, 1))
    writer.close()
    return path.read_bytes()


def capture_seeds() -> list[bytes]:
    """Two rounds under each of the settings, as FedPVR and as FedDyn."""
    found = [_captured([])]
    for config in known.CONFIGS:
        for algorithm in ("fedpvr", "feddyn"):
            first, *chunks = known.broadcast(config)
            opening = pb.RoundFrame.FromString(first)
            opening.header.algorithm, opening.header.num_clients, opening.header.prox_weight = (
                algorithm,
                1,
                0.1,
            )
            after = pb.RoundFrame.FromString(opening.SerializeToString())
            after.header.round, after.header.weighting = 2, "examples"
            if config.variates == "derived":  # The last tensor is c, in the last chunks.
                after.header.tensors[-1].codec, after.header.tensors[-1].num_bytes = CODEC_DERIVED, 0
            found.append(_captured(_rounds(known.update(config), opening, after, chunks)))
    return found


def _rounds(
    up: list[bytes], opening: pb.RoundFrame, after: pb.RoundFrame, chunks: list[bytes]
) -> list[tuple[str, int, bool, bytes]]:
    """A join, a round with its update, and the round after it."""
    accepted = pb.PushUpdateReply(outcome=pb.PushUpdateReply.ACCEPTED).SerializeToString()
    asked = pb.PullRoundRequest(run_id=known.RUN_ID, client=known.CLIENT).SerializeToString()
    return [
        ("Join", 0, True, pb.JoinRequest(client=known.CLIENT).SerializeToString()),
        ("Join", 0, False, pb.JoinReply(run_id=known.RUN_ID, index=1).SerializeToString()),
        ("PullRound", 1, True, asked),
        *(("PullRound", 1, False, frame) for frame in (opening.SerializeToString(), *chunks)),
        *(("PushUpdate", 2, True, frame) for frame in up),
        ("PushUpdate", 2, False, accepted),
        *(("PullRound", 3, False, frame) for frame in (after.SerializeToString(), *chunks)),
    ]


def pcap(data: bytes) -> None:
    """A packet capture, with and without a port, and as a capture file."""
    path = known.file_with(data, "run.pcap")
    for port in (None, 50051):
        list(grpc_messages(path, port, _unheard))
    out = known.folder() / "packets.fedwire"
    out.unlink(missing_ok=True)
    convert(path, None, out, _unheard)
    Capture(out, _unheard)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + struct.pack("!BBI", kind, flags, stream) + content


def _conversation() -> list[tuple[bool, bytes]]:
    """A Join on one HTTP/2 connection: from the client, and what."""
    ask, answer = Encoder(), Encoder()
    request = pb.JoinRequest(client=known.CLIENT).SerializeToString()
    headers = [(":path", f"/{SERVICE}/Join"), ("content-type", "application/grpc"), ("grpc-encoding", "gzip")]
    settings = _frame(4, 0, 0, struct.pack("!HI", 1, 1 << 16))
    small = gzip.compress(request, mtime=0)
    body = struct.pack("!BI", 0, len(request)) + request + struct.pack("!BI", 1, len(small)) + small
    block = ask.encode(headers)
    answered = [answer.encode([(":status", "200"), *headers[1:]]), answer.encode([("grpc-status", "0")])]
    return [
        (True, PREFACE + settings),
        (False, settings),
        (True, _frame(1, 0, 1, block[:9]) + _frame(9, 0x4, 1, block[9:]) + _frame(0, 0x1, 1, body)),
        (False, _frame(1, 0x4, 1, answered[0]) + _frame(0, 0, 1, body)),
        (False, _frame(1, 0x5, 1, answered[1]) + _frame(3, 0, 1, bytes(4))),
    ]


def pcap_seeds() -> list[bytes]:
    """A short conversation in files of several kinds."""
    sent = packet_captures.conversation(_conversation())
    plain = [packet_captures.ip(segment) for segment in sent]
    newer = [packet_captures.ip(segment, version=6) for segment in sent]
    found = [packet_captures.pcap(plain, link=101), packet_captures.pcap(newer, link=101, order=">")]
    for link, order in ((1, "<"), (113, ">"), (276, "<"), (0, "<")):
        frames = [packet_captures.frame(packet, link) for packet in (*plain[:4], *newer[4:])]
        found.append(packet_captures.pcapng(frames, link, order, resolution=9))
        found.append(packet_captures.pcap(frames, link))
    return found


def http2(data: bytes) -> None:
    """Two byte streams of one connection; what cannot be followed has an error of its own."""
    connection = Http2(iter(range(1 << 20)).__next__, lambda from_client, line: _unheard(line))
    with suppress(UndecodableError):
        for part in script(data):
            from_client = part[:1] >= b"\x80"
            list(connection.feed(from_client, memoryview(part[1:])))
            list(connection.feed(False, memoryview(b"")))
    connection.finish(True, "it ended")
    connection.finish(False, "it ended")


def http2_seeds() -> list[bytes]:
    """The same conversation."""
    return [
        scripted([(b"\x80" if up else b"\x00") + data.removeprefix(PREFACE) for up, data in _conversation()])
    ]


TARGETS = {
    "capture": Target(capture, capture_seeds, mutators.capture),
    "commands": Target(commands, capture_seeds, mutators.capture),
    # Its file is read through a buffer of 1 MiB, opened three times, and a packet block may be 324 KiB.
    "pcap": Target(pcap, pcap_seeds, mutators.packets, spare_bytes=4 << 20),
    "http2": Target(http2, http2_seeds, mutators.http2_sides),
}
