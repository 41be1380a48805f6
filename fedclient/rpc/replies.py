"""Replies of the server, checked."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import DamagedError, Fault, UnavailableError
from common.wire.chunks import M, name_of, parsed
from fedpvr.v1 import federation_pb2 as pb


@dataclass(frozen=True)
class PushReply:
    """What the server made of an update: ACCEPTED, DUPLICATE, LATE or REJECTED."""

    outcome: str
    fault: Fault | None
    message: str


def push_reply(reply: pb.PushUpdateReply) -> PushReply:
    """The same as it came."""
    return PushReply(
        name_of(pb.PushUpdateReply.Outcome.Name, reply.outcome), _fault(reply.fault), reply.message
    )


def intact(kind: type[M], data: bytes) -> M:
    """A message of this kind; one that a bad link has damaged is worth another try."""
    try:
        return parsed(kind, data)
    except DamagedError as error:
        raise UnavailableError(f"{error}; asking again") from error


def _fault(number: int) -> Fault | None:
    """None for one that only a newer server knows: its message says what it is, and it is not retried."""
    known = number in pb.PushUpdateReply.Fault.values()
    name = pb.PushUpdateReply.Fault.Name(number) if known else ""  # type: ignore[arg-type]
    return Fault(name) if name in Fault.__members__ else None
