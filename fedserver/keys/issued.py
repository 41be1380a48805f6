"""A certificate or a token as listings show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

SERVER, CLIENT, OPERATOR = "server", "client", "operator"
HOSTS = ("localhost", "127.0.0.1", "::1")
DAYS = 365
"""How long a certificate lasts unless said otherwise."""
MAX_DAYS = 36_500
AUTHORITY_DAYS = 3650
"""How long an authority lasts."""


@dataclass(frozen=True, kw_only=True)
class Issued:
    """What the listing says of a certificate."""

    name: str
    kind: str
    """ca, server, client or operator."""
    serial: int
    valid_from: datetime
    valid_until: datetime
    sans: tuple[str, ...]
    state: str
    """valid, revoked, expired or not yet valid."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the serial in hexadecimal, as other tools show it, and moments in ISO 8601."""
        moments = {key: getattr(self, key).isoformat() for key in ("valid_from", "valid_until")}
        return vars(self) | moments | {"serial": f"{self.serial:x}"}
