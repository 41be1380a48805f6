"""Signs of life while a client trains, where the run asks for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from common.errors import FedError
from fedclient.rpc.connection import Connection, Seat

PER_LEASE = 3
"""Signs in the time of a lease, so that one or two may be lost."""
LEAST_S = 0.1


@contextmanager
def heartbeat(connection: Connection, seat: Seat) -> Iterator[None]:
    """Renews the lease of a seat while the block runs."""
    if seat.lease_s <= 0:
        yield
        return
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(max(seat.lease_s / PER_LEASE, LEAST_S)):
            # The calls in the block meet the same trouble and deal with it; a closed channel has ValueError.
            with suppress(FedError, ValueError):
                connection.renew(seat)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
