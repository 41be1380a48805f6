"""Hostile peers, as a process of its own: python -m tests.attackers HOST:PORT CONNECTIONS SECONDS SEED.

Every connection does its worst for as long as it lives and comes back when it is thrown out; the process ends
by itself. Prints how often each kind was tried.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import grpc
import hpack

from common.wire.calls import CALLS
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.federation_pb2_grpc import FederationStub
from fedpvr.v1.tensor_pb2 import TensorSpec

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_HEADERS = ACK = 4
PATHS = [call.path for call in CALLS.values()]
PAUSE_S = 0.2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class Attacker:
    """One hostile connection after the other."""

    def __init__(self, address: str, until: float, random: random.Random) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.target = (host, int(port))
        self.until = until
        self.random = random

    def alive(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self.until

    def connect(self) -> socket.socket:
        """A TCP connection."""
        connection = socket.create_connection(self.target, timeout=5)
        connection.settimeout(PAUSE_S)
        return connection

    def linger(self, connection: socket.socket) -> None:
        """Answers pings and nothing else, until thrown out."""
        with suppress(OSError):
            while self.alive():
                with suppress(TimeoutError):
                    received = connection.recv(1 << 16)
                    if not received:
                        return
                    if received[3:4] == bytes([PING]):
                        connection.sendall(frame(PING, 1, 0, received[9:17]))

    def garbage(self) -> None:
        """Bytes that mean nothing, or almost."""
        with self.connect() as connection:
            opening = self.random.choice([b"", PREFACE, PREFACE + frame(SETTINGS, 0, 0)])
            connection.sendall(opening + self.random.randbytes(self.random.randint(1, 20_000)))
            self.linger(connection)

    def silence(self) -> None:
        """A connection that says nothing, or only hello."""
        with self.connect() as connection:
            connection.sendall(self.random.choice([b"", PREFACE, PREFACE + frame(SETTINGS, 0, 0)]))
            self.linger(connection)

    def half_open(self) -> None:
        """Calls that begin, announce a message, and send a part of it or nothing."""
        with self.connect() as connection:
            encoder = hpack.Encoder()
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
            for k in range(8):
                fields = [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", self.random.choice(PATHS)),
                    (":authority", "x"),
                    ("content-type", "application/grpc"),
                    ("te", "trailers"),
                ]
                connection.sendall(frame(HEADERS, END_HEADERS, 2 * k + 1, encoder.encode(fields)))
                size = self.random.choice([1_000_000, 1 << 22, (1 << 32) - 1])
                sent = b"\0" + struct.pack(">I", size) + b"\x0a" * 7000
                connection.sendall(frame(DATA, 0, 2 * k + 1, sent))
            self.linger(connection)

    def huge(self) -> None:
        """An update whose manifest announces a terabyte."""
        tensor = TensorSpec(name="fc.weight", dtype=1, shape=[1 << 38], num_bytes=1 << 40)  # type: ignore[arg-type]
        self.push([pb.UpdateFrame(header=pb.UpdateHeader(client="a", round=1, tensors=[tensor] * 9))])

    def endless(self) -> None:
        """An upload that never ends, of chunks that nobody announced or of headers."""
        chunk = pb.UpdateFrame()
        chunk.chunk.data = b"x" * 500_000
        header = pb.UpdateFrame(header=pb.UpdateHeader(client="a", round=1, update_id="y" * 100_000))

        def frames() -> Iterator[pb.UpdateFrame]:
            yield self.random.choice([chunk, header])
            while self.alive():
                yield chunk

        self.push(frames())

    def push(self, frames: Iterator[pb.UpdateFrame] | list[pb.UpdateFrame]) -> None:
        """Sends an update through a real gRPC client."""
        channel = grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        with channel, suppress(grpc.RpcError):
            FederationStub(channel).PushUpdate(iter(frames), timeout=5)


def main() -> None:
    """Attacks."""
    address, connections, seconds, seed = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    until = time.monotonic() + seconds
    tried: Counter[str] = Counter()

    def attack(number: int) -> None:
        attacker = Attacker(address, until, random.Random(f"{seed} {number}"))
        kinds: list[Callable[[], None]] = [
            attacker.garbage,
            attacker.silence,
            attacker.half_open,
            attacker.huge,
            attacker.endless,
        ]
        kind = kinds[number % len(kinds)]
        while True:
            tried[kind.__name__] += 1
            with suppress(OSError):
                kind()
            if not attacker.alive():
                return
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=attack, args=(number,), daemon=True) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(tried))


if __name__ == "__main__":
    main()
