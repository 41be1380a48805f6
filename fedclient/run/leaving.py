"""Taking leave of the server before a client ends for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import (
    AccessError,
    DiskError,
    FedError,
    RefusedError,
    RunError,
    UnavailableError,
    UnknownClientError,
)
from common.events import Emit
from fedclient.events import LeavingUnheard
from fedclient.rpc.connection import Connection
from fedclient.rpc.seat import Seat


@contextmanager
def leaving_on_failure(connection: Connection, seat: Seat, emit: Emit) -> Iterator[None]:
    """Tells the server why the block failed, so that nobody waits for this client. The failure goes on up."""
    try:
        yield
    except (UnavailableError, UnknownClientError, AccessError, DiskError):
        # The client may come back and go on.
        raise
    except Exception as error:
        known = error if isinstance(error, FedError) else RunError(f"training failed: {error!r}")
        try:
            rule = known.rule if isinstance(known, RefusedError) else ""
            connection.decline(seat, 0, str(known), leaving=True, rule=rule)
        except FedError as untold:
            # It must not take the place of the reason, or the client would try again what cannot work.
            emit(LeavingUnheard(reason=str(untold)))
        raise known from error
