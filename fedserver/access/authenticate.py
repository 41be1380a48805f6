"""Who is let in: nobody is asked, or a certificate or a token says who a caller is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

from common.access.certificates import Revocations, caller_certificate, minute
from common.errors import AccessError, printable
from common.events import Emit
from fedserver.access.token_bucket import TokenBuckets
from fedserver.events.clients import TurnedAway
from fedserver.keys.tokens import Tokens, credential_of

BEARER = "Bearer "
QUIET_S = 10.0
MAX_CERTIFICATES = 10_000
"""Whose content is kept, one for every client that a run may have; a few hundred bytes each."""
FAILURES_PER_S, FAILURES_AT_ONCE = 10.0, 100
PENANCE_S = 1.0
"""With 8 streams on each, no connection tries more than eight wrong credentials a second beyond these."""
MAX_ADDRESSES = 10_000
MAX_REASONS = 100
REASON_CHARACTERS = 200


@dataclass(frozen=True)
class Caller:
    """Who makes a call."""

    peer: str
    """Its address, as gRPC has it."""
    name: str | None = None
    """Who it is; None where nobody is asked, and anyone may speak for anyone."""
    credential: str = ""
    """By what it is known: a client may have had others before."""
    require_admitted: Callable[[], object] = lambda: None
    """Raises once it is not admitted any more. A call may take hours."""
    operator: bool = False
    """Whether it has an operator's identity, with which one cannot take part."""

    @property
    def is_operator(self) -> bool:
        """Whether it may see and do what is an operator's: also whoever it is, where nobody is asked."""
        return self.operator or self.name is None

    def require_operator(self) -> None:
        """Raises unless this caller may do what is an operator's."""
        if not self.is_operator:
            raise AccessError(
                f"this is client {self.name!r}, and only an operator may do that; "
                "an operator's identity comes from: fedserver certs issue --operator NAME"
            )

    def require(self, name: str) -> None:
        """Raises unless this caller may speak for a client."""
        if self.operator:
            raise AccessError(f"this is operator {self.name!r}, which cannot take part as a client")
        if self.name is not None and self.name != name:
            raise AccessError(f"this is {self.name!r}, which cannot speak for {name!r}")


class Authenticator(Protocol):
    """Finds out who calls."""

    def admit(self, peer: str, pem: bytes | None, authorization: str) -> Caller:
        """The caller, from its certificate and its metadata; raises if it is not let in."""


class NoAuthentication:
    """Nobody is asked."""

    def admit(self, peer: str, pem: bytes | None, authorization: str) -> Caller:
        """Whoever it is."""
        return Caller(peer)


class CertificateAuthenticator:
    """A certificate, whose authority TLS has checked, says who a caller is."""

    def __init__(
        self, revocations: Revocations, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._revocations = revocations
        self._clock = clock
        # Parsing takes 40 us, little enough for an event loop, and happens once for every certificate.
        self._read = lru_cache(MAX_CERTIFICATES)(caller_certificate)

    def admit(self, peer: str, pem: bytes | None, authorization: str) -> Caller:
        """The client or operator that the certificate names."""
        if pem is None:
            raise AccessError("expected a client's certificate, got none")
        shown = self._read(pem)
        credential = f"certificate {shown.serial:x}"

        def require_admitted() -> None:
            if self._revocations.revoked(shown.serial):
                raise AccessError(f"the certificate of {shown.name} was revoked", credential)
            if self._clock() > shown.expires:
                until = minute(shown.expires)
                raise AccessError(f"the certificate of {shown.name} expired on {until}", credential)

        require_admitted()
        return Caller(peer, shown.name, credential, require_admitted, shown.operator)


class TokenAuthenticator:
    """A token in the metadata says who a caller is."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def admit(self, peer: str, pem: bytes | None, authorization: str) -> Caller:
        """The client or operator that the token was issued to."""
        if not authorization.startswith(BEARER):
            raise AccessError("expected a token, got none; give the client --token-file")
        token = authorization.removeprefix(BEARER)
        holder = self._tokens.holder_of(token)
        credential = credential_of(token)
        return Caller(peer, holder.name, credential, lambda: self._tokens.holder_of(token), holder.operator)


class Penance:
    """Lets callers wait who have shown wrong credentials too often from one address.

    Only wrong ones are held up, and the address is not shut out: others behind it are not to suffer.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._failures = TokenBuckets(FAILURES_PER_S, FAILURES_AT_ONCE, MAX_ADDRESSES, now)
        self._sleep = sleep

    async def serve(self, peer: str) -> None:
        """A caller at this address was not let in; what it is told may have to wait."""
        if not self._failures.take(peer.rpartition(":")[0]):
            await self._sleep(PENANCE_S)


class Refusals:
    """Says who was turned away; the same line not again for a while, however many try."""

    def __init__(self, emit: Emit, now: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._now = now
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int]] = {}
        """When each reason was last said, and how often it was not since."""

    def note(self, reason: str) -> None:
        """Somebody was turned away."""
        reason = printable(reason, REASON_CHARACTERS)
        with self._lock:
            unsaid = self._due(reason)
        if unsaid is not None:
            self._emit(TurnedAway(reason=reason, unsaid=unsaid))

    def _due(self, reason: str) -> int | None:
        """How often it was not said since it last was; None if it is not to be said now."""
        now = self._now()
        if reason not in self._said and len(self._said) >= MAX_REASONS:
            oldest = min(self._said, key=lambda key: self._said[key][0])
            if now < self._said[oldest][0] + QUIET_S:
                return None
            del self._said[oldest]
        at, unsaid = self._said.get(reason, (-QUIET_S, 0))
        if now < at + QUIET_S:
            self._said[reason] = (at, unsaid + 1)
            return None
        self._said[reason] = (now, 0)
        return unsaid
