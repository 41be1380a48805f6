"""What is known of each client from what comes of it: when it was last heard of, and what it is doing.

A client that waits for a round is there as long as its call is open. One that works gives a sign of life
every `sign_s` seconds, so silence tells one that is gone from one that is slow; that its connection broke, or
a good-bye, tells it sooner. None of this decides for whom a round waits: leases and deadlines do.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from common.errors import Fault, WireError
from common.events import Emit, unheard
from fedserver.events.clients import ClientBack, ClientHeld
from fedserver.members.leases import Leases

SIGN_S = 5.0
"""How often a client that works gives a sign of life, in a federation of up to 500 clients."""
SIGNS_PER_S = 100.0
"""Signs that a server takes in at the most if all its clients work at once; more clients give fewer each."""
MISSED_SIGNS = 2.4
"""Signs that may be missing before a client counts as not heard of."""
HUNG_UP_S = 3.0
"""A client whose connection broke has this long to come back before it counts as not heard of."""
WITHOUT_SIGNS_S = 60.0
"""The same for a client of an earlier release, which gives no signs while it works."""


@dataclass
class _Signs:
    """Of one client."""

    heard: float
    gives_signs: bool = False
    """Unknown, and so not counted on, for one whose seat comes from an earlier process of the server."""
    calls: int = 0
    """Streams so far."""
    waits: int = 0
    """Its open calls for a round."""
    uploads: int = 0
    upload_began: float = 0.0
    """The last one."""
    hung_up: bool = False
    stopped: bool = False
    has_round: int = 0
    """The last round that was sent to it."""
    held_by: str = ""
    """The rule under which its site has yet to decide."""
    told: bool = False
    """Whether people were told that it is missing, has stopped or has left."""


class Presence:
    """Signs of all clients, by index."""

    def __init__(
        self,
        leases: Leases | None = None,
        working: int = 1,
        emit: Emit = unheard,
        now: Callable[[], float] = time.monotonic,
        *,
        expects_signs: bool = True,
    ) -> None:
        """`working` is how many clients may work at once."""
        self.leases = leases or Leases(None)
        self.sign_s = max(SIGN_S, working / SIGNS_PER_S)
        self._emit = emit
        self._now = now
        self._expects_signs = expects_signs
        self._signs: dict[int, _Signs] = {}

    def heard(self, i: int, name: str) -> None:
        """Client i has said something."""
        self.leases.renew(i)
        signs = self._of(i)
        signs.heard = self._now()
        signs.hung_up = signs.stopped = False
        if signs.told:
            signs.told = False
            self._emit(ClientBack(client=name))

    def gives_signs(self, i: int, gives: bool) -> None:
        """Whether client i gives signs of life while it works."""
        self._of(i).gives_signs = gives

    def says_good_bye(self, i: int) -> None:
        """The process of client i ends, and may come back."""
        signs = self._of(i)
        signs.stopped = signs.told = True

    def held(self, i: int, name: str, rule: str) -> None:
        """Client i does not go on before its site has decided under a rule; it does if there is none."""
        signs = self._of(i)
        if rule and rule != signs.held_by:
            self._emit(ClientHeld(client=name, rule=rule))
        signs.held_by = rule

    def held_by(self, i: int) -> str:
        """The rule under which its site has yet to decide; empty if there is none."""
        return self._of(i).held_by

    def round_sent(self, i: int, r: int) -> None:
        """Client i gets a round."""
        signs = self._of(i)
        signs.has_round, signs.heard = r, self._now()

    @contextmanager
    def call(self, i: int) -> Iterator[None]:
        """A stream of client i, which its connection may break; unless it has begun another, it hung up."""
        signs = self._of(i)
        signs.calls += 1
        number = signs.calls
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit, WireError) as error:
            # A stream that was cut may look like one that ended early.
            cut = not isinstance(error, WireError) or error.fault is Fault.TOO_FEW_BYTES
            if cut and number == signs.calls:
                signs.hung_up, signs.heard = True, self._now()
            raise

    @contextmanager
    def waiting(self, i: int) -> Iterator[None]:
        """Client i waits for a round, in a call."""
        signs = self._of(i)
        signs.waits += 1
        try:
            yield
        finally:
            signs.waits -= 1
            signs.heard = self._now()

    @contextmanager
    def uploading(self, i: int) -> Iterator[None]:
        """An update of client i is on its way in."""
        signs = self._of(i)
        signs.uploads += 1
        signs.held_by = ""
        signs.upload_began = self._now()
        try:
            with self.call(i), self.leases.held(i):
                yield
        finally:
            signs.uploads -= 1

    def upload_s(self, i: int) -> float:
        """Seconds since the last upload of client i began."""
        return self._now() - self._of(i).upload_began

    def seen_to_move(self, i: int) -> None:
        """Bytes of client i came, though no whole message."""
        self._of(i).heard = self._now()

    def round_opens(self, clients: Iterable[int]) -> None:
        """A round waits for these."""
        self.leases.round_opens(clients)

    def silent_s(self, i: int) -> float:
        """Seconds since client i was last heard of."""
        signs = self._of(i)
        return 0.0 if signs.waits else self._now() - signs.heard

    def heard_at(self, i: int) -> float | None:
        """When client i was last heard of, by the clock that never jumps; None while it waits in a call."""
        signs = self._of(i)
        return None if signs.waits else signs.heard

    def missing_after_s(self, i: int) -> float:
        """For how long client i may be silent."""
        signs = self._of(i)
        if signs.stopped:
            return 0.0
        if signs.hung_up:
            return HUNG_UP_S
        if not self._expects_signs:
            return math.inf
        return MISSED_SIGNS * self.sign_s if signs.gives_signs else max(WITHOUT_SIGNS_S, self.sign_s)

    def is_missing(self, i: int) -> bool:
        """Whether client i has been silent for too long, or has stopped."""
        signs = self._of(i)
        return signs.stopped or self.silent_s(i) > self.missing_after_s(i)

    def is_stopped(self, i: int) -> bool:
        """Whether client i has said good-bye."""
        return self._of(i).stopped

    def works(self, i: int, r: int) -> str:
        """What client i does with a round that it has not answered."""
        signs = self._of(i)
        if signs.uploads:
            return "uploading"
        if signs.held_by:
            return "held"
        return "training" if signs.has_round == r else "preparing"

    def silence(self, i: int) -> str:
        """How a person is told that client i is missing."""
        signs, ago = self._of(i), f"{self.silent_s(i):.0f} s"
        if signs.stopped:
            return f"stopped {ago} ago"
        if signs.hung_up:
            return f"hung up {ago} ago and has not come back"
        if not signs.gives_signs:
            return f"has not been heard of since it got round {signs.has_round}, {ago} ago"
        return f"has not been heard of for {ago}"

    def only_once(self, i: int) -> bool:
        """Whether client i may just be busy, so that nobody is to be told of its silence again and again."""
        signs = self._of(i)
        return not (signs.gives_signs or signs.hung_up or signs.stopped)

    def told(self, i: int) -> None:
        """Somebody was told that client i is missing."""
        self._of(i).told = True

    def _of(self, i: int) -> _Signs:
        return self._signs.setdefault(i, _Signs(self._now()))
