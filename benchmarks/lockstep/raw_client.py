"""Clients that move bytes, with plain gRPC or TCP: `raw_client.py FDS grpc|tcp PORT CHUNK BYTES`."""

from __future__ import annotations

import socket
import sys
from typing import Any

from lockstep.crew import Member, serve

DOWN, UP = "/raw/Down", "/raw/Up"


def raw_frames(chunk: int, size: int) -> list[bytes]:
    """As many bytes as a model has: one piece again and again would stay in a cache."""
    return [bytes([k % 256]) * chunk for k in range(size // chunk)]


def grpc_client(member: Member, _: int) -> None:
    """Pulls and pushes in turn."""
    import grpc

    port, chunk, size = map(int, sys.argv[3:])
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        grpc.channel_ready_future(channel).result()
        pull: Any = channel.unary_stream(DOWN)
        push: Any = channel.stream_unary(UP)
        data = raw_frames(chunk, size)
        while True:
            member.ready("down")
            for _ in pull(b""):
                pass
            member.done()
            member.ready("up")
            push(iter(data))
            member.done()


def tcp_client(member: Member, _: int) -> None:
    """The same without gRPC."""
    port, _, size = map(int, sys.argv[3:])
    into, data = bytearray(1 << 20), bytes(size)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            member.ready("down")
            connection.sendall(b"d")
            left = size
            while left:
                left -= connection.recv_into(into, min(left, len(into)))
            member.done()
            member.ready("up")
            connection.sendall(b"u")
            connection.sendall(data)
            connection.recv(1)
            member.done()


if __name__ == "__main__":
    serve({"grpc": grpc_client, "tcp": tcp_client}[sys.argv[2]])
