"""What this client shows to the server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from common.access import cli as access_cli
from common.access.certificates import certificate, minute, read
from common.access.credentials import Access, require_encrypted
from common.access.expiry import expiry
from common.errors import FedError
from fedclient.check.findings import Finding, failed, ok, warning


def look_at_credentials(
    server: str, name: str, certs: Path | None, token_file: Path | None, insecure: bool
) -> tuple[Access | None, Finding]:
    """The credentials, if they can be used."""
    try:
        require_encrypted(server, certs, insecure)
        access = access_cli.access(server, name, certs, token_file, insecure)
        shown = access.read()
    except FedError as reason:
        return None, failed("credentials", reason)
    if shown.certificate is None:
        what = "a token" if shown.token is not None else "none"
        return access, ok("credentials", f"{what}; {'TLS' if certs else 'nothing is encrypted'}")
    return access, _expiry(access.files()[0], datetime.now(UTC))


def _expiry(path: Path, now: datetime) -> Finding:
    soon = expiry(path, now)
    if soon is not None:
        found, _, remedy = soon.text().partition("; ")
        return warning("credentials", found, remedy)
    return ok("credentials", f"{path} is valid until {minute(read(path, certificate).not_valid_after_utc)}")
