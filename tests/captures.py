"""Packet captures for tests: a real gRPC conversation, recorded byte for byte, in every kind of file."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from fedwire.pcap.packets import GrpcMessage, grpc_messages

CLIENT_PORT, SERVER_PORT = 40_000, 50_051
SYN, ACK, FIN, RST = 2, 16, 1, 4
LINKS = [0, 1, 12, 14, 101, 108, 113, 228, 276]
Calls = list[tuple[str, list[bytes], list[bytes]]]
"""Method, what the client sent, what the server sent."""


@dataclass
class Recording:
    """What went over one connection, as bytes and as messages."""

    chunks: list[tuple[bool, bytes]] = field(default_factory=list)  # From the client, and what.
    calls: Calls = field(default_factory=list)


def _several(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    for request in requests:
        yield request[::-1]


def _squeezed(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_compression(grpc.Compression.Deflate)
    return request * 2


@contextmanager
def serving() -> Iterator[int]:
    """A real server; gives its port."""
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "One": grpc.unary_unary_rpc_method_handler(lambda request, context: request + b"!"),
        "Several": grpc.stream_stream_rpc_method_handler(_several),
        "Squeezed": grpc.unary_unary_rpc_method_handler(_squeezed),
    }
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


def talk(port: int) -> Calls:
    """Holds the conversation; calls overlap, so the frames of several streams are mixed."""
    small, large = b"hello", random.Random(0).randbytes(300_000)
    many = [large[k * 1000 :] for k in range(3)]
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        one: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/t.T/One")
        several: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/t.T/Several")
        futures = [one.future(data, metadata=(("trace", "x" * 100),)) for data in (b"", small, large)]
        assert list(several(iter(many))) == [data[::-1] for data in many]
        for future in futures:
            future.result(10)
        squeezed: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/t.T/Squeezed")
        assert squeezed(small * 1000, compression=grpc.Compression.Gzip) == small * 2000
    calls: Calls = [("/t.T/One", [data], [data + b"!"]) for data in (b"", small, large)]
    calls.append(("/t.T/Several", many, [data[::-1] for data in many]))
    return [*calls, ("/t.T/Squeezed", [small * 1000], [small * 2000])]


def _pump(source: socket.socket, target: socket.socket, note: Callable[[bytes], None]) -> None:
    with suppress(OSError):  # A side that has all it wants may hang up.
        while data := source.recv(1 << 16):
            note(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def record() -> Recording:
    """A real client and a real server with a recording proxy between them."""
    found = Recording()
    with serving() as server_port, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def relay() -> None:
            client, _ = listener.accept()
            with client, socket.create_connection(("127.0.0.1", server_port)) as upstream:
                back = threading.Thread(
                    target=_pump, args=(upstream, client, lambda data: found.chunks.append((False, data)))
                )
                back.start()
                _pump(client, upstream, lambda data: found.chunks.append((True, data)))
                back.join()

        relaying = threading.Thread(target=relay, daemon=True)
        relaying.start()
        found.calls = talk(port)
        relaying.join(10)
        assert not relaying.is_alive()
    return found


@dataclass(frozen=True)
class Sent:
    """One TCP segment."""

    from_client: bool
    seq: int
    ack: int
    flags: int
    data: bytes = b""


def conversation(
    chunks: list[tuple[bool, bytes]], most: int = 60_000, first: tuple[int, int] = (7_000, 2**32 - 100_000)
) -> list[Sent]:
    """A whole connection; the client's numbers wrap soon. `first` is the server's and the client's number."""
    at = list(first)
    sent = [Sent(True, at[1], 0, SYN), Sent(False, at[0], at[1] + 1, SYN | ACK)]
    at = [at[0] + 1, at[1] + 1]
    sent.append(Sent(True, at[1], at[0], ACK))
    for side, chunk in chunks:
        for start in range(0, len(chunk), most):
            piece = chunk[start : start + most]
            sent.append(Sent(side, at[side], at[not side], ACK, piece))
            at[side] += len(piece)
            sent.append(Sent(not side, at[not side], at[side], ACK))
    return [*sent, Sent(True, at[1], at[0], ACK | FIN), Sent(False, at[0], at[1] + 1, ACK | FIN)]


def ip(sent: Sent, version: int = 4, options: bytes = b"", ports: tuple[int, int] | None = None) -> bytes:
    """The segment as an IP packet; `options` are IPv4 options or IPv6 extension headers."""
    client, server = ports or (CLIENT_PORT, SERVER_PORT)
    order = (client, server) if sent.from_client else (server, client)
    numbers = (sent.seq % 2**32, sent.ack % 2**32)
    segment = (
        struct.pack("!HHIIBBHHH", *order, *numbers, 8 << 4, sent.flags, 1000, 0, 0) + bytes(12) + sent.data
    )
    hosts = (1, 2) if sent.from_client else (2, 1)
    if version == 6:
        body = options + segment
        head = struct.pack("!IHBB", 6 << 28, len(body) % 2**16, 0 if options else 6, 64)
        return head + b"".join(bytes(15) + bytes([host]) for host in hosts) + body
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, words * 4 + len(segment), 1, 0x4000, 64, 6, 0)
    return head + b"".join(bytes([127, 0, 0, host]) for host in hosts) + options + segment


def frame(packet: bytes, link: int = 1) -> bytes:
    """The IP packet in a link layer frame; Ethernet gets two VLAN tags and padding."""
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    if link in (0, 108):
        return struct.pack("<I" if link == 0 else ">I", 2) + packet
    if link == 1:
        return (bytes(12) + b"\x88\xa8\x00\x05\x81\x00\x00\x07" + kind + packet).ljust(90, b"\xee")
    if link == 113:
        return bytes(14) + kind + packet
    return kind + bytes(18) + packet if link == 276 else packet


def pcap(
    frames: list[bytes], link: int = 1, order: str = "<", nano: bool = False, snap: int = 1 << 18
) -> bytes:
    """A pcap file; packet k has time 1000 + k/1000."""
    tick = 10**6 if nano else 10**3
    out = [struct.pack(order + "IHHiIII", 0xA1B23C4D if nano else 0xA1B2C3D4, 2, 4, 0, 0, snap, link)]
    for k, data in enumerate(frames):
        out.append(
            struct.pack(order + "IIII", 1000 + k // 1000, k % 1000 * tick, min(len(data), snap), len(data))
        )
        out.append(data[:snap])
    return b"".join(out)


def block(kind: int, body: bytes, order: str) -> bytes:
    """One pcapng block."""
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def pcapng(frames: list[bytes], link: int = 1, order: str = "<", resolution: int | None = None) -> bytes:
    """A pcapng file with an unknown block, comments, and every seventh packet in a simple block."""
    ticks = 10**6 if resolution is None else (2 if resolution & 128 else 10) ** (resolution & 127)
    option = b"" if resolution is None else struct.pack(order + "HHB3xHH", 9, 1, resolution, 0, 0)
    out = [block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)]
    out += [block(1, struct.pack(order + "HHI", link, 0, 0) + option, order), block(0xBAD, b"skip me", order)]
    for k, data in enumerate(frames):
        at, size = int((1000 + k / 1000) * ticks), len(data)
        head = struct.pack(order + "IIIII", 0, at >> 32, at & 0xFFFFFFFF, size, size)
        comment = bytes(-size % 4) + struct.pack(order + "HH4s", 1, 4, b"note")
        simple = struct.pack(order + "I", size) + data
        out.append(block(3, simple, order) if k % 7 == 6 else block(6, head + data + comment, order))
    return b"".join(out)


def read(path: Path, data: bytes, port: int | None = None) -> tuple[list[GrpcMessage], list[str]]:
    """The messages and problems of a file with these bytes."""
    path.write_bytes(data)
    problems: list[str] = []
    return list(grpc_messages(path, port, problems.append)), problems


def calls_of(messages: list[GrpcMessage]) -> Calls:
    """Messages by call."""
    calls: dict[int, tuple[str, list[bytes], list[bytes]]] = {}
    for message in messages:
        _, asked, answered = calls.setdefault(message.call, (message.method, [], []))
        (asked if message.from_client else answered).append(message.data)
    return list(calls.values())
