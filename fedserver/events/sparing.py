"""Keeps a client that comes and goes all the time from filling the log."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from common.events import Emit, Event
from fedserver.access.token_bucket import TokenBucket
from fedserver.events.clients import (
    ClientBack,
    ClientHeld,
    ClientJoined,
    ClientLeft,
    ClientsAwaited,
    ClientStopped,
    LinesLeftOut,
)

COMING_AND_GOING = (ClientBack, ClientHeld, ClientJoined, ClientLeft, ClientsAwaited, ClientStopped)
BURST, PER_SECOND = 10, 1 / 30
MAX_NAMES = 20_000
"""Names that are remembered; before there are seats anybody can make some up."""


@dataclass
class _Limit:
    """For the lines about one client."""

    bucket: TokenBucket = field(default_factory=lambda: TokenBucket(PER_SECOND, BURST))
    unsaid: int = 0


def sparing(emit: Emit) -> Emit:
    """The same listener, which hears of the coming and going of one client only so often."""
    limits: OrderedDict[str, _Limit] = OrderedDict()

    def heard(event: Event) -> None:
        if not isinstance(event, COMING_AND_GOING) or not event.client:
            emit(event)
            return
        limit = limits.setdefault(event.client, _Limit())
        limits.move_to_end(event.client)
        if len(limits) > MAX_NAMES:
            limits.popitem(last=False)
        if not limit.bucket.take():
            limit.unsaid += 1
            return
        if limit.unsaid:
            emit(LinesLeftOut(client=event.client, lines=limit.unsaid))
            limit.unsaid = 0
        emit(event)

    return heard
