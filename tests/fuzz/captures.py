"""Targets: captures of messages, packet captures, and HTTP/2 on its own."""

from __future__ import annotations

import struct
from contextlib import suppress

from hpack import Encoder

from common.capture import CaptureWriter
from common.dialogue import SERVICE, Entry, Passed
from common.errors import FedError
from fedpvr.v1 import federation_pb2 as pb
from fedwire.diff import differences
from fedwire.export import export
from fedwire.http2 import PREFACE, Http2, UndecodableError
from fedwire.inspect import inspect
from fedwire.packets import grpc_messages
from fedwire.replay import Replay
from fedwire.source import Capture, convert
from fedwire.stats import statistics
from fedwire.transfers import transfers, values
from tests.fuzz import known, mutators
from tests.fuzz.mutators import script, scripted
from tests.fuzz.target import Target

_EVERY = 8
"""One message of so many is looked at closely; each look reads the whole capture."""


def capture(data: bytes) -> None:
    """A capture file, through to its tensors, and as one that is written on."""
    path = known.file_with(data, "run.fedwire")
    found = Capture(path, _unheard)
    everything = transfers(found)
    for transfer in everything:
        with suppress(FedError):
            values(found, transfer, everything)
    CaptureWriter(path, _unheard).close()


def commands(data: bytes) -> None:
    """The same through every command that reads captures."""
    found = Capture(known.file_with(data, "run.fedwire"), _unheard)
    statistics(found)
    for number in range(len(data) % _EVERY, len(found.messages), _EVERY):
        with suppress(FedError):
            inspect(found, number)
    differences(found, found)
    export(found, known.folder() / "tensors", None, None, _unheard)
    Replay(found, None).run()


def _unheard(line: str) -> None:
    """Takes a problem's line."""
    assert "\n" not in line


def _captured(messages: list[tuple[str, int, bool, bytes]]) -> bytes:
    path = known.folder() / "seed.fedwire"
    path.unlink(missing_ok=True)
    writer = CaptureWriter(path, _unheard)
    for rpc, call, up, data in messages:
        writer.write(rpc, call, Passed(10**18, up, data, Entry("request"), known.CLIENT, 1))
    writer.close()
    return path.read_bytes()


def capture_seeds() -> list[bytes]:
    """A round under each of the settings."""
    accepted = pb.PushUpdateReply(outcome=pb.PushUpdateReply.ACCEPTED).SerializeToString()
    asked = pb.PullRoundRequest(run_id=known.RUN_ID, client=known.CLIENT).SerializeToString()
    found = [_captured([])]
    for config in known.CONFIGS:
        down, up = known.broadcast(config), known.update(config)
        round_again = pb.RoundFrame.FromString(down[0])
        round_again.header.round = 2
        found.append(
            _captured(
                [
                    ("Join", 0, True, pb.JoinRequest(client=known.CLIENT).SerializeToString()),
                    ("Join", 0, False, pb.JoinReply(run_id=known.RUN_ID, index=1).SerializeToString()),
                    ("PullRound", 1, True, asked),
                    *(("PullRound", 1, False, frame) for frame in down),
                    *(("PushUpdate", 2, True, frame) for frame in up),
                    ("PushUpdate", 2, False, accepted),
                    ("PullRound", 3, True, asked),
                    *(
                        ("PullRound", 3, False, frame)
                        for frame in (round_again.SerializeToString(), *down[1:])
                    ),
                ]
            )
        )
    return found


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
    body = struct.pack("!BI", 0, len(request)) + request
    return [
        (True, PREFACE + settings),
        (False, settings),
        (True, _frame(1, 0x4, 1, ask.encode(headers)) + _frame(0, 0x1, 1, body)),
        (False, _frame(1, 0x4, 1, answer.encode([(":status", "200"), headers[1]])) + _frame(0, 0, 1, body)),
        (False, _frame(1, 0x5, 1, answer.encode([("grpc-status", "0")])) + _frame(3, 0, 1, bytes(4))),
    ]


def pcap_seeds() -> list[bytes]:
    """A short conversation in raw IP packets, and beginnings of the other kinds of file."""
    packets, at = [], [1, 1]
    for up, content in _conversation():
        ports = (40000, 50051) if up else (50051, 40000)
        tcp = struct.pack("!HHIIBBHHH", *ports, at[up], at[not up], 5 << 4, 16, 1000, 0, 0)
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(content), 1, 0, 64, 6, 0)
        hosts = bytes([127, 0, 0, 2 - up, 127, 0, 0, 1 + up])
        packets.append(ip + hosts + tcp + content)
        at[up] += len(content)
    records = b"".join(struct.pack("<IIII", 1000, 0, len(p), len(p)) + p for p in packets)
    classic = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 101) + records
    blocks = [struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)]
    blocks.append(struct.pack("<IIHHIHHB3xHHI", 1, 32, 101, 0, 0, 9, 1, 9, 0, 0, 32))
    for packet in packets:
        body = struct.pack("<IIIII", 0, 0, 1000, len(packet), len(packet)) + packet + bytes(-len(packet) % 4)
        size = struct.pack("<I", len(body) + 12)
        blocks.append(struct.pack("<I", 6) + size + body + size)
    return [classic, b"".join(blocks)]


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
