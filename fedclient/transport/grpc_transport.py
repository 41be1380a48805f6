"""How a client's encoded messages reach the server: over gRPC here, in the same process in a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import grpc

from common.access.channel import open_channel
from common.access.credentials import Credentials
from common.errors import (
    AccessError,
    FedError,
    JoinError,
    RunError,
    SupersededError,
    UnavailableError,
    UnknownClientError,
    WrongRunError,
)
from common.wire.chunks import CHUNK_BYTES
from common.wire.messages import SERVICE

_OPTIONS: list[tuple[str, int]] = [
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
]
_ERRORS: dict[grpc.StatusCode, type[FedError]] = {
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: JoinError,
    grpc.StatusCode.ABORTED: SupersededError,
    grpc.StatusCode.NOT_FOUND: UnknownClientError,
    grpc.StatusCode.FAILED_PRECONDITION: WrongRunError,
    grpc.StatusCode.INVALID_ARGUMENT: RunError,
    grpc.StatusCode.UNIMPLEMENTED: WrongRunError,
}


class Transport(Protocol):
    """The calls of federation.proto that a client makes, on encoded messages."""

    @property
    def chunk_bytes(self) -> int:
        """Size of the chunks that suit this way."""

    def join(self, request: bytes) -> bytes:
        """Takes a seat."""

    def pull(self, request: bytes) -> Iterator[bytes]:
        """Receives a round."""

    def push(self, frames: Iterator[bytes]) -> bytes:
        """Sends an update."""

    def progress(self, request: bytes) -> bytes:
        """Asks how much of an update has arrived."""

    def renew(self, request: bytes) -> bytes:
        """Gives a sign of life."""

    def close(self) -> None:
        """Hangs up."""


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
        # Messages come and go encoded: a chunk is written around the tensor's own bytes, and read in place.
        self._join: Any = self._channel.unary_unary(f"/{SERVICE}/Join")
        self._pull: Any = self._channel.unary_stream(f"/{SERVICE}/PullRound")
        self._push: Any = self._channel.stream_unary(f"/{SERVICE}/PushUpdate")
        self._progress: Any = self._channel.unary_unary(f"/{SERVICE}/UpdateProgress")
        self._renew: Any = self._channel.unary_unary(f"/{SERVICE}/Renew")

    def join(self, request: bytes) -> bytes:
        """Takes a seat."""
        return self._reply(self._join, request)

    def pull(self, request: bytes) -> Iterator[bytes]:
        """Receives a round."""
        with self._mapped_errors():
            yield from self._pull(request, metadata=self._credentials.metadata)

    def push(self, frames: Iterator[bytes]) -> bytes:
        """Sends an update."""
        return self._reply(self._push, frames)

    def progress(self, request: bytes) -> bytes:
        """Asks how much of an update has arrived."""
        return self._reply(self._progress, request)

    def renew(self, request: bytes) -> bytes:
        """Gives a sign of life."""
        return self._reply(self._renew, request)

    def close(self) -> None:
        """Hangs up."""
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
            code, details = error.code(), error.details() or "no reason given"
            if code in _ERRORS:
                raise _ERRORS[code](details) from error
            if self._credentials.certificate is not None and "Socket closed" in details:
                details += "; does the server trust this certificate?"
            raise UnavailableError(f"no server answers at {self._server} ({code.name}: {details})") from error
