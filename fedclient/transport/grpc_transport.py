"""Calls over gRPC. Messages come and go encoded: chunks are written around tensors and read in place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from common.access.channel import open_channel
from common.access.credentials import Credentials
from common.errors import UnavailableError
from common.wire.calls import CALLS, SERVICE, Call
from common.wire.chunks import CHUNK_BYTES
from common.wire.statuses import error_of

_LIMITS = {
    "methodConfig": [
        {"name": [{"service": SERVICE, "method": call.name}], "maxResponseMessageBytes": call.max_reply_bytes}
        for call in CALLS.values()
    ]
}
"""Largest replies by call: gRPC takes the smaller one of this and of the channel's own limit."""
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A client waits for hours in one call; pings tell a slow server from a dead one.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # On a slow link a ping waits behind a megabyte of data, so it gets more than the usual minute.
    ("grpc.http2.ping_timeout_ms", 180_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A connection of its own for every client, also for several in one process.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", max(call.max_reply_bytes for call in CALLS.values())),
    ("grpc.service_config", json.dumps(_LIMITS)),
]


class GrpcTransport:
    """A channel to a server; errors of gRPC become ours."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, server: str, credentials: Credentials, window_bytes: int | None = None) -> None:
        """`window_bytes` bounds what the server may send ahead of what has been read."""
        self._server = server
        self._credentials = credentials
        options = list(_OPTIONS)
        if window_bytes is not None:
            options += [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", window_bytes)]
        self._channel = open_channel(server, credentials, options)

    def ask(self, call: Call, request: bytes) -> bytes:
        """Waits for the reply, however long the server takes."""
        return self._reply(self._channel.unary_unary(call.path), request)

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """Reads no faster than the caller does."""
        method: Any = self._channel.unary_stream(call.path)
        with self._mapped_errors():
            yield from method(request, metadata=self._credentials.metadata)

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """gRPC takes the frames in a thread of its own, as fast as they go out."""
        return self._reply(self._channel.stream_unary(call.path), frames)

    def close(self) -> None:
        """Ends calls that are still open, too."""
        self._channel.close()

    def _reply(self, method: Any, request: Any) -> bytes:
        with self._mapped_errors():
            reply: bytes = method(request, metadata=self._credentials.metadata)
            return reply

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or "no reason given"
            mapped = error_of(code, details)
            if not isinstance(mapped, UnavailableError):
                raise mapped from error
            raise type(mapped)(f"no server answers at {self._server} ({code}: {details})") from error
