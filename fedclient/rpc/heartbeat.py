"""Signs of life while a client works, and its good-bye."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType

from common.errors import FedError
from fedclient.rpc.connection import Connection
from fedclient.rpc.seat import Seat

PER_LEASE = 3
"""Signs in the time of a lease, so that one or two may be lost."""
LEAST_S = 0.1
GOOD_BYE_S = 2.0
"""How long a client that is told to end waits for its good-bye to be heard."""


class Heartbeat:
    """Gives a sign of life whenever a client with a seat has said nothing for a while; a context.

    One that waits for a round is known to be there by its call, and gives signs only for its lease. A signal
    that ends the block makes the last sign a good-bye.
    """

    def __init__(self, connection: Connection, seat: Seat) -> None:
        self._connection = connection
        self._seat = seat
        self.heard_good_bye = False
        """Whether the server knows that the client's process ends."""
        self._going = False
        self._ended = threading.Event()
        lease_s = max(seat.lease_s / PER_LEASE, LEAST_S) if seat.lease_s else float("inf")
        self._waiting_s = lease_s
        self._working_s = min(lease_s, max(seat.sign_s, LEAST_S)) if seat.sign_s else lease_s
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        # A server of an earlier release asks for no signs, unless there is a lease.
        if self._working_s < float("inf"):
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._going = error is not None and not isinstance(error, Exception)
        self._ended.set()
        if self._going and self._thread.ident is not None:
            self._thread.join(GOOD_BYE_S)

    def _beat(self) -> None:
        while not self._ended.wait(min(max(self._due_s(), LEAST_S), self._working_s)):
            if self._due_s() <= 0:
                self._renew()
        if self._going:
            self.heard_good_bye = self._renew(going=True)

    def _due_s(self) -> float:
        """Seconds until the next sign."""
        often = self._waiting_s if self._connection.waiting else self._working_s
        return self._connection.spoke_at + often - time.monotonic()

    def _renew(self, *, going: bool = False) -> bool:
        # The calls in the block meet the same trouble and deal with it; a closed channel has ValueError.
        with suppress(FedError, ValueError):
            self._connection.renew(self._seat, going=going)
            return True
        return False
