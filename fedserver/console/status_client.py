"""Asks a running server what it is doing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.access import diagnosis
from common.access.channel import open_channel
from common.access.credentials import Access, Credentials
from common.errors import AccessError, UnavailableError
from common.wire.calls import CALLS, SERVICE
from common.wire.chunks import parsed, sealed
from common.wire.statuses import error_of
from fedpvr.v1 import federation_pb2 as pb
from fedserver.console.status import Status, status_of

KEEPALIVE = (("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000))
"""Who only listens notices a dead server by these pings."""


def ask(server: str, access: Access | None = None, timeout_s: float = 5.0) -> Status:
    """The status of a server."""
    found = status_of(parsed(pb.StatusReply, _asked(server, access, "Status", pb.StatusRequest(), timeout_s)))
    until = diagnosis.valid_until(server, access) if access is not None else None
    return replace(found, certificate_until=until.isoformat() if until is not None else None)


def _asked(server: str, access: Access | None, call: str, request: Message, timeout_s: float) -> bytes:
    """The reply to a call of an operator."""
    credentials = access.read() if access is not None else Credentials()
    with open_channel(server, credentials) as channel:
        try:
            method: Any = channel.unary_unary(CALLS[call].path)
            reply: bytes | None = method(sealed(request), timeout=timeout_s, metadata=credentials.metadata)
            return reply or b""
        except grpc.RpcError as error:
            meaning = error_of(error.code().name, f"{server}: {error.details()}")
            if not isinstance(meaning, UnavailableError):
                raise meaning from error
            _require_possible(server, access)
            raise UnavailableError(
                f"no server answers at {server}; start one with: fedserver run --listen {server}"
            ) from error


def watch(server: str, access: Access | None = None) -> Iterator[pb.StatusReply]:
    """Statuses of a server whenever something has changed, until its run is over."""
    credentials = access.read() if access is not None else Credentials()
    with open_channel(server, credentials, KEEPALIVE) as channel:
        try:
            method: Any = channel.unary_stream(CALLS["WatchStatus"].path)
            for data in method(sealed(pb.WatchStatusRequest()), metadata=credentials.metadata):
                yield parsed(pb.StatusReply, data)
        except grpc.RpcError as error:
            meaning = error_of(error.code().name, f"{server}: {error.details()}")
            if isinstance(meaning, UnavailableError):
                _require_possible(server, access)
            raise meaning from error


def evict(server: str, name: str, access: Access | None = None, timeout_s: float = 10.0) -> None:
    """Has a member taken out of the run."""
    _asked(server, access, "Evict", pb.EvictRequest(client=name), timeout_s)


def require_health(server: str, access: Access | None = None, timeout_s: float = 3.0) -> None:
    """Raises unless the server says by the gRPC health protocol that it serves."""
    with open_channel(server, access.read() if access is not None else Credentials()) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.RpcError as error:
            _require_possible(server, access)
            raise UnavailableError(f"no server answers at {server}: {error.code().name}") from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        raise UnavailableError(f"the server at {server} does not serve: {status}")


def _require_possible(server: str, access: Access | None) -> None:
    """Raises if no connection can come about, whether or not there is a server."""
    fault = diagnosis.fault(server, access or Access())
    if fault is not None:
        raise AccessError(fault)
