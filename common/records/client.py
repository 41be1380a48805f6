"""What a client writes down as JSON in its state directory."""

from __future__ import annotations

from dataclasses import dataclass

from common.records.base import Record

OWNER = "owner.json"


@dataclass(frozen=True, kw_only=True)
class Owner(Record):
    """run-RUN_ID/owner.json: whose state the folder holds."""

    client: str
    """Name of the client."""
    model: str
    """Fingerprint of the model that it trains."""

    def described(self) -> str:
        """For an error message."""
        return f"client {self.client!r} with model {self.model[:12]}"
