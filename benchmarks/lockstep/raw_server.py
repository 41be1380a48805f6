"""Moves bytes and does nothing with them: `raw_server.py grpc|tcp CHUNK BYTES` prints its port."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

from lockstep.raw_client import DOWN, UP, raw_frames


async def grpc_server(chunk: int, size: int) -> None:
    """A grpc.aio server, as ours is, with the options that gRPC has by itself."""
    import grpc

    frames = raw_frames(chunk, size)

    async def down(_: bytes, context: Any) -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame

    async def up(requests: AsyncIterator[bytes], context: Any) -> bytes:
        total = 0
        async for frame in requests:
            total += len(frame)
        return str(total).encode()

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        DOWN.rpartition("/")[2]: grpc.unary_stream_rpc_method_handler(down),
        UP.rpartition("/")[2]: grpc.stream_unary_rpc_method_handler(up),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def tcp_server(size: int) -> None:
    """A thread for each connection."""
    data, into = bytes(size), bytearray(1 << 20)

    def answer(connection: socket.socket) -> None:
        while wish := connection.recv(1):
            left = size
            if wish == b"d":
                connection.sendall(data)
                continue
            while left:
                left -= connection.recv_into(into, min(left, len(into)))
            connection.sendall(b".")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    kind, given_chunk, given_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "grpc":
        asyncio.run(grpc_server(given_chunk, given_size))
    else:
        tcp_server(given_size)
