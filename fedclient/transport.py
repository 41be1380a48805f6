"""How a client's messages reach the server: over gRPC here, in the same process in a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import grpc

from common.errors import (
    FedError,
    JoinError,
    RunError,
    SupersededError,
    UnavailableError,
    UnknownClientError,
    WrongRunError,
)
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.federation_pb2_grpc import FederationStub

_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A client waits for hours in one call; pings tell a slow server from a dead one.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_ERRORS: dict[grpc.StatusCode, type[FedError]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: JoinError,
    grpc.StatusCode.ABORTED: SupersededError,
    grpc.StatusCode.NOT_FOUND: UnknownClientError,
    grpc.StatusCode.FAILED_PRECONDITION: WrongRunError,
    grpc.StatusCode.INVALID_ARGUMENT: RunError,
    grpc.StatusCode.UNIMPLEMENTED: WrongRunError,
    grpc.StatusCode.UNKNOWN: RunError,
}


class Transport(Protocol):
    """The calls of federation.proto that a client makes."""

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Takes a seat."""

    def pull(self, request: pb.PullRoundRequest) -> Iterator[pb.RoundFrame]:
        """Receives a round."""

    def push(self, frames: Iterator[bytes]) -> pb.PushUpdateReply:
        """Sends encoded `UpdateFrame`s."""

    def close(self) -> None:
        """Hangs up."""


class GrpcTransport:
    """A channel to a server; errors of gRPC become ours."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._channel = grpc.insecure_channel(server, options=_OPTIONS)
        self._stub = FederationStub(self._channel)
        # Frames come encoded: a chunk is written around the tensor's own bytes, without a protobuf object.
        self._push = self._channel.stream_unary(
            f"/{pb.DESCRIPTOR.services_by_name['Federation'].full_name}/PushUpdate",
            request_serializer=bytes,
            response_deserializer=pb.PushUpdateReply.FromString,
        )

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        """Takes a seat."""
        with self._mapped_errors():
            return self._stub.Join(request)

    def pull(self, request: pb.PullRoundRequest) -> Iterator[pb.RoundFrame]:
        """Receives a round."""
        with self._mapped_errors():
            yield from self._stub.PullRound(request)

    def push(self, frames: Iterator[bytes]) -> pb.PushUpdateReply:
        """Sends encoded `UpdateFrame`s."""
        with self._mapped_errors():
            return self._push(frames)

    def close(self) -> None:
        """Hangs up."""
        self._channel.close()

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or "no reason given"
            if code in _ERRORS:
                raise _ERRORS[code](details) from error
            raise UnavailableError(f"no server answers at {self._server} ({code.name}: {details})") from error
