"""Certificates that end soon are named, and a server takes a renewed one without a restart."""

from __future__ import annotations

import json
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from common.access.certificates import certificate, shown_certificate
from common.access.credentials import Access
from common.access.expiry import expiry
from common.access.meeting import Meeting
from fedserver.console.status_client import ask
from fedserver.console.tables import show_status
from fedserver.keys.authority import Authority
from tests.processes import Federation, wait_until

FLAGS = ["--num-clients", "1", "--rounds", "1", "--local-steps", "1"]


@pytest.mark.parametrize(("days", "told"), [(365, None), (29, "in 28 days"), (2, "in 1 day"), (1, "today")])
def test_a_certificate_that_ends_within_thirty_days_is_named(
    tmp_path: Path, days: int, told: str | None
) -> None:
    authority = Authority(tmp_path / "certs")
    authority.init()
    authority.issue("clinic-a", days)
    found = expiry(authority.folder / "clinic-a.pem", datetime.now(UTC) + timedelta(minutes=1))
    assert (found is None) == (told is None)
    if found is not None and told is not None:
        assert f"expires {told}; renew it with: fedserver certs issue" in found.text()


def shown_serial(address: str) -> int:
    """The certificate that a server shows, by its number."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with Meeting(address) as meeting:
        return shown_certificate(meeting.look(context)).serial_number


def test_a_renewed_certificate_is_shown_without_a_restart(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(federation.folder / "certs")
    authority.init()
    authority.issue("server", 5, hosts=(), renew=True)
    authority.issue("a", 20)
    authority.issue("alice", operator=True)
    federation.server(*FLAGS, "--certs", "certs")
    federation.wait_for("server", r"certs/server.pem expires in 4 days; renew it with: fedserver certs issue")
    access = Access("alice", authority.folder)
    show_status(ask(federation.address, access))
    assert "the server's certificate expires in 4 days" in capsys.readouterr().out
    before = shown_serial(federation.address)
    (authority.folder / "server.pem").write_bytes((authority.folder / "a.pem").read_bytes())
    assert shown_serial(federation.address) == before
    federation.wait_for("server", "is not the key of .*; the certificate that was read before stays in force")
    authority.issue("server", hosts=(), renew=True)
    after = certificate((authority.folder / "server.pem").read_bytes()).serial_number
    wait_until(lambda: shown_serial(federation.address) == after, "the server shows the new one")
    federation.wait_for("server", "certs/server.pem was renewed")
    status = ask(federation.address, access)
    assert datetime.fromisoformat(status.certificate_until or "") > datetime.now(UTC) + timedelta(days=300)
    assert json.dumps(status.as_json())
    shutil.copytree(authority.folder, federation.folder / "site")
    federation.client("a", "--certs", "site")
    federation.finish()
    assert "site/a.pem expires in 19 days" in federation.log("a")
