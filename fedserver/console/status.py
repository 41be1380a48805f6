"""What a running server says of itself, as a typed value. `as_json` is its form for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from common.wire.chunks import name_of
from common.wire.messages import DIRECTIONS
from fedpvr.v1 import federation_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """One member."""

    name: str
    index: int
    examples: int
    counted_round: int
    state: str
    last_seen_seconds: float | None
    reason: str
    rule: str
    """Of its site's policy, where that has refused something."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The last evaluation."""

    round: int
    accuracy: float
    loss: float
    seconds: float | None


Counts = dict[str, float | None]
"""Examples and metrics by name."""


@dataclass(frozen=True, kw_only=True)
class SitesStatus:
    """The last evaluation at the clients: all together, and by client."""

    round: int
    pooled: Counts | None
    worst: str | None
    clients: dict[str, Counts]


@dataclass(frozen=True, kw_only=True)
class MissedRounds:
    """Somebody without whom rounds closed."""

    client: str
    rounds: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes of one client in one direction."""

    payload: int
    encoded: int
    socket: int | None


@dataclass(frozen=True, kw_only=True)
class Status:
    """All that `fedserver status` shows."""

    run_id: str
    algorithm: str
    model: str
    dataset: str
    phase: str
    """preparing, waiting, training or finished."""
    round: int
    rounds: int
    num_clients: int
    certificate_until: str | None = None
    needed: int
    clients: tuple[ClientStatus, ...]
    last: Evaluated | None
    sites: SitesStatus | None
    bytes: dict[str, dict[str, int]]
    """By direction and purpose."""
    traffic: dict[str, dict[str, Sizes]]
    """By client and direction."""
    others: int
    """Members that the caller may not see."""
    rounds_without: int
    left_out: tuple[MissedRounds, ...]

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def status_of(reply: pb.StatusReply) -> Status:
    """A server's answer."""
    return Status(
        run_id=reply.run_id,
        algorithm=reply.algorithm,
        model=reply.model,
        dataset=reply.dataset,
        phase=status_phase(reply),
        round=reply.round,
        rounds=reply.rounds,
        num_clients=reply.num_clients,
        needed=reply.needed,
        clients=tuple(map(_client, reply.clients)),
        last=_evaluated(reply.last) if reply.HasField("last") else None,
        sites=_sites(reply.sites) if reply.HasField("sites") else None,
        bytes=_bytes(reply),
        traffic=_traffic(reply),
        others=reply.others,
        rounds_without=reply.rounds_without,
        left_out=tuple(
            MissedRounds(client=each.client, rounds=each.rounds, reason=each.reason)
            for each in reply.left_out
        ),
    )


def status_phase(status: pb.StatusReply) -> str:
    """preparing, waiting, training or finished."""
    return name_of(pb.StatusReply.Phase.Name, status.phase).lower()


def _client(found: pb.ClientStatus) -> ClientStatus:
    return ClientStatus(
        name=found.name,
        index=found.index,
        examples=found.examples,
        counted_round=found.counted_round,
        state=found.state,
        last_seen_seconds=found.last_seen_seconds if found.HasField("last_seen_seconds") else None,
        reason=found.reason,
        rule=found.rule,
    )


def _evaluated(found: pb.RoundResult) -> Evaluated:
    return Evaluated(
        round=found.round,
        accuracy=found.accuracy,
        loss=found.loss,
        seconds=found.seconds if found.HasField("seconds") else None,
    )


def _sites(found: pb.SitesResult) -> SitesStatus:
    return SitesStatus(
        round=found.round,
        pooled=_counts(found.pooled) if found.HasField("pooled") else None,
        worst=found.worst or None,
        clients={row.client: _counts(row) for row in found.sites},
    )


def _counts(row: pb.SiteResult) -> Counts:
    metrics = {each.name: each.value if each.HasField("value") else None for each in row.metrics}
    return {"examples": row.examples, **metrics}


def _bytes(reply: pb.StatusReply) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {direction: {} for direction in DIRECTIONS}
    for count in reply.bytes:
        counts.setdefault(count.direction, {})[count.purpose] = count.bytes
    return counts


def _traffic(reply: pb.StatusReply) -> dict[str, dict[str, Sizes]]:
    table: dict[str, dict[str, Sizes]] = {}
    for count in reply.traffic:
        table.setdefault(count.client, {})[count.direction] = Sizes(
            payload=count.payload,
            encoded=count.encoded,
            socket=count.socket if count.HasField("socket") else None,
        )
    return table
