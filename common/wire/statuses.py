"""Errors as gRPC status codes: one table, which the server reads from left to right and clients back.

Codes are written by name, because gRPC itself is imported only where calls are made and answered.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import (
    AccessError,
    CertificateError,
    DamagedError,
    FedError,
    JoinError,
    NoConnectionError,
    RunError,
    SupersededError,
    TooLargeError,
    UnavailableError,
    UnknownClientError,
    WireError,
    WrongRunError,
)

OTHER = "INTERNAL"
"""For everything that has no code of its own, such as a full disk; the client tries again."""
STOPPING = "the server is stopping"
"""What a server says, under UNAVAILABLE, to those who wait while it is stopped: another process may go on."""
_TOO_LARGE = "larger than max"
"""What gRPC says, under RESOURCE_EXHAUSTED, of a message above a limit of either side."""
_NO_CONNECTION = "failed to connect to all addresses"
"""What gRPC says, under UNAVAILABLE, if a call has reached nobody."""


@dataclass(frozen=True)
class Meaning:
    """What a status code stands for."""

    status: str
    raised: tuple[type[FedError], ...]
    """By the server; of two that fit an error, the first row counts."""
    seen_as: type[FedError]
    """By its client."""


MEANINGS = (
    Meaning("DATA_LOSS", (DamagedError,), UnavailableError),
    Meaning("INVALID_ARGUMENT", (WireError,), RunError),
    Meaning("UNAUTHENTICATED", (AccessError, CertificateError), AccessError),
    Meaning("ABORTED", (SupersededError,), SupersededError),
    Meaning("RESOURCE_EXHAUSTED", (JoinError,), JoinError),
    Meaning("NOT_FOUND", (UnknownClientError,), UnknownClientError),
    Meaning("FAILED_PRECONDITION", (WrongRunError,), WrongRunError),
    Meaning("UNAVAILABLE", (UnavailableError,), UnavailableError),
    # gRPC's own answer to a call that the server does not have: there listens something else, or the name of
    # the call was damaged on its way.
    Meaning("UNIMPLEMENTED", (), UnavailableError),
)
_SEEN_AS = {meaning.status: meaning.seen_as for meaning in MEANINGS}


def status_of(error: Exception) -> str:
    """The name of the code that an error ends a call with."""
    return next((meaning.status for meaning in MEANINGS if isinstance(error, meaning.raised)), OTHER)


def error_of(status: str, details: str) -> FedError:
    """What a call that ended with a code means to whoever made it."""
    if status == "RESOURCE_EXHAUSTED" and _TOO_LARGE in details:
        return TooLargeError(
            f"a message is too large for gRPC: {details}; "
            "smaller shards, fewer tensors or shorter names would fit"
        )
    if status == "UNAVAILABLE" and details.startswith(_NO_CONNECTION):
        return NoConnectionError(details)
    return _SEEN_AS.get(status, UnavailableError)(details)
