"""A key that is made at the site and stays there: the request, the signature, and who is refused."""

from __future__ import annotations

import shutil
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from common.access.certificates import caller_certificate, require_usable
from common.access.signing_request import (
    common_name,
    make_request,
    new_key,
    request_pem,
    signing_request,
)
from common.errors import CertificateError, ConfigError, JoinError
from fedclient.cli import main as fedclient
from fedserver.cli import main as fedserver
from fedserver.keys.authority import Authority
from tests.processes import Federation


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an authority."""
    folder = tmp_path_factory.mktemp("template") / "certs"
    Authority(folder).init()
    return folder


@pytest.fixture
def authority(template: Path, tmp_path: Path) -> Authority:
    """A copy of it."""
    return Authority(Path(shutil.copytree(template, tmp_path / "authority")))


def test_from_the_request_to_a_certificate_by_command(authority: Authority, tmp_path: Path) -> None:
    site = tmp_path / "site"
    asked = CliRunner().invoke(fedclient, ["certs", "request", "clinic-a", "--dir", str(site)])
    assert asked.exit_code == 0, asked.output
    signed = CliRunner().invoke(
        fedserver, ["certs", "sign", str(site / "clinic-a.csr"), "--dir", str(authority.folder)]
    )
    assert signed.exit_code == 0, signed.output
    fingerprint = asked.output.splitlines()[0].rpartition(" ")[2]
    assert signed.output.splitlines()[0].endswith(fingerprint), "so that people can compare it"
    assert not (authority.folder / "clinic-a.key").exists()
    shutil.copy(authority.folder / "clinic-a.pem", site)
    require_usable(site / "clinic-a.pem", site / "clinic-a.key", datetime.now(UTC))
    assert stat.S_IMODE((site / "clinic-a.key").stat().st_mode) == 0o600
    assert [entry.name for entry in authority.show() if entry.kind == "client"] == ["clinic-a"]


def test_a_certificate_is_renewed_with_the_same_key(authority: Authority, tmp_path: Path) -> None:
    first = make_request(tmp_path, "clinic-a")
    key = (tmp_path / "clinic-a.key").read_bytes()
    authority.sign(first)
    again = make_request(tmp_path, "clinic-a")
    assert (tmp_path / "clinic-a.key").read_bytes() == key
    assert again.fingerprint == first.fingerprint
    with pytest.raises(ConfigError, match="give --renew for another"):
        authority.sign(again)
    authority.sign(again, renew=True)
    authority.revoke("clinic-a")
    assert {entry.state for entry in authority.show() if entry.kind == "client"} == {"revoked"}


def test_who_decides_that_somebody_is_an_operator_is_the_authority(
    authority: Authority, tmp_path: Path
) -> None:
    request = make_request(tmp_path, "alice")
    authority.sign(request, operator=True)
    assert caller_certificate((authority.folder / "alice.pem").read_bytes()).operator


@pytest.mark.parametrize("name", ["server", "CA", "crl"])
def test_names_of_the_authoritys_own_files_are_not_signed(
    name: str, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="choose another name"):
        authority.sign(make_request(tmp_path, name))


def foreign(name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    """A request that another tool has made."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(common_name(name))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_requests_that_another_tool_made_are_held_to_the_same() -> None:
    assert signing_request(foreign("clinic-a", new_key())).name == "clinic-a"
    with pytest.raises(CertificateError, match="name of one client"):
        signing_request(foreign("../clinic-a", new_key()))
    with pytest.raises(CertificateError, match="curve P-256"):
        signing_request(foreign("clinic-a", ec.generate_private_key(ec.SECP384R1())))
    with pytest.raises(CertificateError, match="curve P-256"):
        signing_request(foreign("clinic-a", rsa.generate_private_key(65537, 2048)))
    with pytest.raises(CertificateError, match="at most"):
        signing_request(b"x" * 100_000)


REQUEST = request_pem("clinic-a", new_key())


@settings(max_examples=60)
@given(st.integers(0, len(REQUEST) - 1), st.integers(1, 255))
def test_a_request_with_a_wrong_byte_is_the_same_or_refused(position: int, flip: int) -> None:
    """Whoever changes it on its way would have to sign it again with the key."""
    changed = bytearray(REQUEST)
    changed[position] ^= flip
    try:
        found = signing_request(bytes(changed))
    except CertificateError:
        return
    assert found.name == "clinic-a"
    assert found.fingerprint == signing_request(REQUEST).fingerprint


def test_a_key_that_others_can_read_or_that_is_none_is_not_used(tmp_path: Path) -> None:
    make_request(tmp_path, "clinic-a")
    (tmp_path / "clinic-a.key").chmod(0o644)
    with pytest.raises(ConfigError, match="for its owner only"):
        make_request(tmp_path, "clinic-a")
    (tmp_path / "clinic-a.key").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="move it away"):
        make_request(tmp_path, "clinic-a")
    with pytest.raises(JoinError):
        make_request(tmp_path, "a/b")


def test_a_site_with_a_key_of_its_own_trains_and_signs_what_leaves(
    authority: Authority, federation: Federation
) -> None:
    site = federation.folder / "site"
    authority.sign(make_request(site, "a"))
    for name in ("ca.pem", "a.pem"):
        shutil.copy(authority.folder / name, site)
    federation.server(
        "--num-clients", "1", "--rounds", "1", "--local-steps", "1", "--certs", str(authority.folder)
    )
    (federation.folder / "site.toml").write_text("require_tls = true\n")
    federation.client("a", "--certs", str(site), "--site", "site.toml")
    federation.finish()
    assert [record["updates"] for record in federation.rounds()] == [1]
    state = ["--state-dir", str(federation.folder / "state" / "a")]
    command = ["outbox", "verify", *state, "--certs", str(site), "--name", "a"]
    verified = CliRunner().invoke(fedclient, command)
    key = make_request(site, "a").fingerprint
    assert verified.output == f"2 entries, whole and as they were written; signed with key {key}\n"
