"""Asks a running server what it is doing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.access import diagnosis
from common.access.channel import open_channel
from common.access.credentials import Access, Credentials
from common.errors import AccessError, UnavailableError
from common.wire.calls import CALLS, SERVICE
from common.wire.chunks import name_of, parsed, sealed
from common.wire.messages import DIRECTIONS
from common.wire.statuses import error_of
from fedpvr.v1 import federation_pb2 as pb

KEEPALIVE = (("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 20_000))
"""Who only listens notices a dead server by these pings."""


def ask(server: str, access: Access | None = None, timeout_s: float = 5.0) -> dict[str, Any]:
    """The status of a server as plain values."""
    found = status_values(
        parsed(pb.StatusReply, _asked(server, access, "Status", pb.StatusRequest(), timeout_s))
    )
    until = diagnosis.valid_until(server, access) if access is not None else None
    return found | {"certificate_until": until.isoformat() if until is not None else None}


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


def status_phase(status: pb.StatusReply) -> str:
    """preparing, waiting, training or finished."""
    return name_of(pb.StatusReply.Phase.Name, status.phase).lower()


def evict(server: str, name: str, access: Access | None = None, timeout_s: float = 10.0) -> None:
    """Has a member taken out of the run."""
    _asked(server, access, "Evict", pb.EvictRequest(client=name), timeout_s)


def status_values(reply: pb.StatusReply) -> dict[str, Any]:
    """A server's answer as plain values."""
    counts: dict[str, dict[str, int]] = {direction: {} for direction in DIRECTIONS}
    for count in reply.bytes:
        counts.setdefault(count.direction, {})[count.purpose] = count.bytes
    return {
        "run_id": reply.run_id,
        "algorithm": reply.algorithm,
        "model": reply.model,
        "dataset": reply.dataset,
        "phase": status_phase(reply),
        "round": reply.round,
        "rounds": reply.rounds,
        "num_clients": reply.num_clients,
        "certificate_until": None,
        "needed": reply.needed,
        "clients": [
            {
                "name": client.name,
                "index": client.index,
                "examples": client.examples,
                "counted_round": client.counted_round,
                "state": client.state,
                "last_seen_seconds": _if_known(client, "last_seen_seconds"),
                "reason": client.reason,
                "rule": client.rule,
            }
            for client in reply.clients
        ],
        "last": _last(reply.last) if reply.HasField("last") else None,
        "sites": _sites(reply.sites) if reply.HasField("sites") else None,
        "bytes": counts,
        "traffic": _traffic(reply),
        "others": reply.others,
        "rounds_without": reply.rounds_without,
        "left_out": [
            {"client": each.client, "rounds": each.rounds, "reason": each.reason} for each in reply.left_out
        ],
    }


def _last(found: pb.RoundResult) -> dict[str, Any]:
    """The last evaluation."""
    return {
        "round": found.round,
        "accuracy": found.accuracy,
        "loss": found.loss,
        "seconds": _if_known(found, "seconds"),
    }


def _if_known(message: Message, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


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


def _sites(found: pb.SitesResult) -> dict[str, Any]:
    """The last evaluation at the clients: all together, and by client."""

    def values(row: pb.SiteResult) -> dict[str, Any]:
        return {"examples": row.examples, **{each.name: _if_known(each, "value") for each in row.metrics}}

    return {
        "round": found.round,
        "pooled": values(found.pooled) if found.HasField("pooled") else None,
        "worst": found.worst or None,
        "clients": {row.client: values(row) for row in found.sites},
    }


def _traffic(reply: pb.StatusReply) -> dict[str, dict[str, dict[str, int | None]]]:
    """Payload, encoded and socket bytes by client and direction."""
    table: dict[str, dict[str, dict[str, int | None]]] = {}
    for count in reply.traffic:
        table.setdefault(count.client, {})[count.direction] = {
            "payload": count.payload,
            "encoded": count.encoded,
            "socket": _if_known(count, "socket"),
        }
    return table
