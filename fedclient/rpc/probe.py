"""Probes: what a server tells a client that is not in the run yet, and how long bytes take."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from common.errors import WireError
from common.server_step.rules import Rules
from common.wire.calls import CALLS
from common.wire.chunks import CHUNK_BYTES, PROTOCOL_VERSION, sealed
from fedclient.rpc.replies import intact
from fedclient.rpc.seat import Seat, model_spec
from fedclient.transport.base import Transport
from fedpvr.v1 import federation_pb2 as pb

MAX_UP_BYTES, MAX_DOWN_BYTES = CHUNK_BYTES, CHUNK_BYTES // 4
"""Of padding that a server takes, and sends."""


@dataclass(frozen=True)
class Terms:
    """What a run will ask of this client."""

    seat: Seat
    """One that nobody has: its index is that of no client, and it has no shard."""
    rules: Rules
    """Of round 1."""
    down_bytes: int
    """Tensors of a round on their way to a client."""
    up_bytes: int
    """Those of an update."""


@dataclass(frozen=True)
class Probed:
    """What came back."""

    seconds: float
    """There and back."""
    ahead_s: float
    """By how much the server's clock is ahead of this one, if both ways take as long."""
    run_id: str
    terms: Terms | None
    """None while the run is being prepared, and for a probe with padding."""


def probe(transport: Transport, name: str, *, down: int = 0, up: int = 0) -> Probed:
    """Asks the server of a run, with so much padding each way."""
    padding = secrets.token_bytes(up)
    request = pb.ProbeRequest(
        protocol_version=PROTOCOL_VERSION, client=name, padding_bytes=down, padding=padding
    )
    data, started, clock = sealed(request), time.monotonic(), time.time()
    answer = transport.ask(CALLS["Probe"], data)
    seconds = time.monotonic() - started
    reply = intact(pb.ProbeReply, answer)
    if len(reply.padding) != down:
        raise WireError.broken_contract(f"expected {down} bytes of padding, got {len(reply.padding)}")
    ahead_s = reply.unix_seconds - clock - seconds / 2
    return Probed(seconds, ahead_s, reply.run_id, _terms(reply) if reply.HasField("model") else None)


def _terms(reply: pb.ProbeReply) -> Terms:
    seat = Seat(
        run_id=reply.run_id,
        index=0,
        num_clients=reply.num_clients,
        seed=reply.seed,
        model=model_spec(reply.model),
        fingerprint=reply.model.fingerprint,
        class_names=tuple(reply.model.class_names),
        mean=tuple(reply.model.mean),
        std=tuple(reply.model.std),
        dataset=reply.dataset or None,
        indices=[],
    )
    return Terms(seat, Rules.from_header(reply.rules), reply.down_bytes, reply.up_bytes)
