"""Certificates that will soon be of no use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

from common.errors import CertificateError
from common.events import Event, Level

WARNED = timedelta(days=30)
"""Before the end."""


@dataclass(frozen=True, kw_only=True)
class CertificateExpires(Event):
    """A certificate is to be renewed."""

    level: ClassVar[Level] = Level.WARNING
    path: str
    days: int
    remedy: str

    def text(self) -> str:
        when = "today" if self.days < 1 else "in 1 day" if self.days == 1 else f"in {self.days} days"
        return f"{self.path} expires {when}; renew it with: {self.remedy}"


def valid_until(path: Path) -> datetime | None:
    """The end of a certificate; None if it cannot be read."""
    from common.access.certificates import certificate, read

    try:
        return read(path, certificate).not_valid_after_utc
    except CertificateError:
        return None


def expiry(path: Path, now: datetime) -> CertificateExpires | None:
    """What to tell of a certificate; None if it is good for a while, or cannot be read."""
    from common.access.certificates import renewal

    end = valid_until(path)
    if end is None or (left := end - now) > WARNED:
        return None
    days = max(0, math.floor(left / timedelta(days=1)))
    return CertificateExpires(path=str(path), days=days, remedy=renewal(path))
