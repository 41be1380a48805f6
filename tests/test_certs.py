"""The certificate authority: what it issues and revokes, its files, and a handshake over gRPC with them."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given, settings
from hypothesis import strategies as st

from common.access.certificates import (
    CallerCertificate,
    Revocations,
    caller_certificate,
    certificate,
    require_usable,
)
from common.access.signing_request import new_key
from common.errors import CertificateError, ConfigError, JoinError, StateError
from fedserver.cli import main
from fedserver.keys.authority import Authority
from fedserver.keys.signer import Signer
from tests.test_cli import invoke

NOW = datetime.now(UTC)


def at(days: float) -> Any:
    """A clock that stands so many days from now."""
    return lambda: NOW + timedelta(days=days)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two clients, one of which is renewed."""
    folder = tmp_path_factory.mktemp("template") / "certs"
    authority = Authority(folder)
    authority.init()
    authority.issue("clinic-a")
    authority.issue("clinic-b")
    authority.issue("clinic-b", renew=True)
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(template, tmp_path / "certs"))


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file and its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def trusting(folder: Path) -> PolicyBuilder:
    """Somebody who trusts this authority, with the rules of the web."""
    return (
        PolicyBuilder().store(Store([certificate((folder / "ca.pem").read_bytes())])).time(datetime.now(UTC))
    )


def test_the_chain_of_a_client_and_of_the_server_verifies(folder: Path) -> None:
    leaf = certificate((folder / "clinic-a.pem").read_bytes())
    verified = trusting(folder).build_client_verifier().verify(leaf, [])
    assert verified.subjects == [x509.UniformResourceIdentifier("fedpvr:client:clinic-a")]
    server = certificate((folder / "server.pem").read_bytes())
    trusting(folder).build_server_verifier(x509.DNSName("localhost")).verify(server, [])
    with pytest.raises(VerificationError):
        trusting(folder).build_server_verifier(x509.DNSName("elsewhere")).verify(server, [])


def test_certificates_of_another_authority_or_for_another_purpose_are_rejected(
    folder: Path, tmp_path: Path
) -> None:
    Authority(tmp_path / "other").init()
    Authority(tmp_path / "other").issue("clinic-a")
    verifier = trusting(folder).build_client_verifier()
    for path in (tmp_path / "other" / "clinic-a.pem", folder / "server.pem", folder / "ca.pem"):
        with pytest.raises(VerificationError):
            verifier.verify(certificate(path.read_bytes()), [])


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_keys_are_for_their_owner_only_from_the_moment_they_are_made(
    mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[tuple[str, int]] = []
    real = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        opened = real(path, flags, mode, **options)
        modes.append((str(path), stat.S_IMODE(os.fstat(opened).st_mode)))
        return opened

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(mask)
    try:
        Authority(tmp_path / "certs").init()
        Authority(tmp_path / "certs").issue("clinic-a")
    finally:
        os.umask(before)
    made = {Path(path).name.split(".")[1]: mode for path, mode in modes if ".key." in path}
    assert made == {"ca": 0o600, "server": 0o600, "clinic-a": 0o600}
    kept = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "certs").glob("*.key")}
    assert kept == {"ca.key": 0o600, "server.key": 0o600, "clinic-a.key": 0o600}
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700


def test_an_empty_folder_is_taken_and_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "certs").mkdir(mode=0o755)
    Authority(tmp_path / "certs").init()
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700


def test_a_folder_that_holds_anything_is_not_touched(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    with pytest.raises(ConfigError, match=r"must be new or empty for a new authority, but holds ca\.key"):
        Authority(folder).init()
    assert contents(folder) == before
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    with pytest.raises(ConfigError, match=r"but holds letter\.txt"):
        Authority(tmp_path / "home").init()
    assert len(contents(tmp_path / "home")) == 1


def test_another_client_leaves_every_file_as_it_was(folder: Path) -> None:
    before = contents(folder)
    issued = Authority(folder).issue("clinic-c")
    after = contents(folder)
    assert {path: after[path] for path in before} == before
    added = {path.relative_to(folder).as_posix() for path in after.keys() - before.keys()}
    assert added == {"clinic-c.pem", "clinic-c.key", f"issued/{issued.serial:x}.pem"}


def test_a_name_has_one_certificate_unless_renewed_revoked_or_expired(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'clinic-a' has a certificate until .* UTC; give --renew"):
        Authority(folder).issue("clinic-a")
    first = caller_certificate((folder / "clinic-a.pem").read_bytes()).serial
    assert Authority(folder).issue("clinic-a", renew=True).serial != first
    assert Authority(folder).revoke("clinic-b")
    Authority(folder).issue("clinic-b", days=30)
    Authority(folder, clock=at(31)).issue("clinic-b")
    require_usable(folder / "clinic-b.pem", folder / "clinic-b.key", NOW + timedelta(days=31))


@pytest.mark.parametrize(
    "name", ["", ".hidden", "a/b", "a b", "x" * 65, "\N{LATIN SMALL LETTER E WITH ACUTE}"]
)
def test_what_is_not_a_client_name_gets_no_certificate(name: str, folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(JoinError, match="a client name has"):
        Authority(folder).issue(name)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("name", "hosts"), [("ca", None), ("crl", None), ("server", None), ("CA", None), ("ca", ["localhost"])]
)
def test_names_of_the_authoritys_own_files_are_reserved(
    name: str, hosts: list[str] | None, folder: Path
) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        Authority(folder).issue(name, hosts=hosts)


def test_a_server_gets_another_certificate_for_other_hosts(folder: Path) -> None:
    hosts = ["fl.example.org", "*.example.net", "192.0.2.7", "2001:db8::7", "fl.example.org"]
    issued = Authority(folder).issue("backup", hosts=hosts)
    assert (issued.kind, issued.sans) == ("server", tuple(hosts[:4]))
    backup = certificate((folder / "backup.pem").read_bytes())
    trusting(folder).build_server_verifier(x509.DNSName("fl.example.org")).verify(backup, [])
    with pytest.raises(ConfigError, match="'backup' is already known as server"):
        Authority(folder).issue("backup", renew=True)
    with pytest.raises(ConfigError, match="'clinic-a' is already known as client"):
        Authority(folder).issue("clinic-a", hosts=hosts, renew=True)
    with pytest.raises(ConfigError, match="'server' has a certificate"):
        Authority(folder).issue("server", hosts=hosts)
    assert Authority(folder).issue("server", hosts=hosts, renew=True).sans == tuple(hosts[:4])


@pytest.mark.parametrize(
    "host", ["", "a b", "localhost:50051", "[::1]", "1.2.3.999", "-x.org", "x" * 64, "x..y"]
)
def test_what_is_not_a_host_is_refused_before_anything_is_written(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--host must be a host name or an IP address without a port"):
        Authority(tmp_path / "certs").init([host])
    with pytest.raises(ConfigError, match="--host must name at least one host"):
        Authority(tmp_path / "certs").init([])
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_days_have_bounds(days: int, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--days must be from 1 to 36500"):
        Authority(tmp_path / "new").init(days=days)
    with pytest.raises(ConfigError, match="--days must be from 1 to 36500"):
        Authority(folder).issue("clinic-c", days)


def test_validity_starts_early_and_never_outlives_the_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certs", clock=at(0))
    authority.init(days=30)
    authority.issue("clinic-a", 365)
    ca, client, server = authority.show()
    assert (
        ca.valid_until
        == client.valid_until
        == server.valid_until
        == (NOW + timedelta(days=30)).replace(microsecond=0)
    )
    assert NOW - ca.valid_from >= timedelta(minutes=5)
    with pytest.raises(StateError, match=r"this authority expired on .*; make a new one"):
        Authority(tmp_path / "certs", clock=at(31)).issue("clinic-b")


def test_revoking_covers_renewed_certificates_and_nobody_else(folder: Path) -> None:
    authority = Authority(folder)
    serials = {entry.serial for entry in authority.show() if entry.name == "clinic-b"}
    before = contents(folder)
    assert set(authority.revoke("clinic-b")) == serials
    assert len(serials) == 2
    changed = {path.name for path, data in contents(folder).items() if before[path] != data}
    assert changed == {"crl.pem"}
    assert authority.revoke("clinic-b") == []
    first = x509.load_pem_x509_crl((folder / "crl.pem").read_bytes())
    authority.revoke("clinic-a")
    listed = x509.load_pem_x509_crl((folder / "crl.pem").read_bytes())
    assert {entry.serial_number for entry in listed} > {entry.serial_number for entry in first} == serials
    numbers = [
        crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number for crl in (first, listed)
    ]
    assert numbers[0] < numbers[1]
    states = {entry.name: entry.state for entry in authority.show()}
    assert (states["clinic-a"], states["clinic-b"], states["server"]) == ("revoked", "revoked", "valid")
    for name in ("nobody", "ca"):
        with pytest.raises(ConfigError, match=f"expected a name that has a certificate, got '{name}'"):
            authority.revoke(name)


def test_states_follow_the_clock(folder: Path) -> None:
    assert {entry.state for entry in Authority(folder).show()} == {"valid"}
    assert {entry.state for entry in Authority(folder, clock=at(-1)).show()} == {"not yet valid"}
    states = {entry.kind: entry.state for entry in Authority(folder, clock=at(366)).show()}
    assert states == {"ca": "valid", "server": "expired", "client": "expired"}


def test_revocations_at_the_same_time_all_count(folder: Path) -> None:
    names = [f"many-{k}" for k in range(8)]
    for name in names:
        Authority(folder).issue(name)
    with ThreadPoolExecutor(8) as pool:
        revoked = list(pool.map(lambda name: Authority(folder).revoke(name), names))
    listed = x509.load_pem_x509_crl((folder / "crl.pem").read_bytes())
    assert sorted(entry.serial_number for entry in listed) == sorted(
        serial for serials in revoked for serial in serials
    )


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("ca.pem", None, r"no certificate authority here \(no ca.pem\); make one with: fedserver certs init"),
        ("ca.pem", b"damaged", "ca.pem: expected a certificate in PEM form, got something else; restore"),
        ("ca.key", None, "ca.key: No such file or directory; restore it"),
        ("ca.key", b"damaged", "ca.key: expected a private key without a password in PEM form"),
        ("ca.key", "server.key", "ca.key is not the key of ca.pem"),
        ("crl.pem", None, "crl.pem: No such file"),
        ("crl.pem", b"damaged", "crl.pem: expected a revocation list in PEM form"),
        ("issued/ff.pem", b"damaged", "issued/ff.pem: expected a certificate"),
    ],
)
def test_a_damaged_authority_ends_in_one_line(
    name: str, data: bytes | str | None, message: str, folder: Path
) -> None:
    if data is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes((folder / data).read_bytes() if isinstance(data, str) else data)
    for act in (lambda: Authority(folder).issue("clinic-c"), lambda: Authority(folder).revoke("clinic-a")):
        with pytest.raises(StateError, match=message) as caught:
            act()
        assert "\n" not in str(caught.value)


def test_an_authority_without_its_records_does_not_claim_that_nobody_has_a_certificate(folder: Path) -> None:
    shutil.rmtree(folder / "issued")
    with pytest.raises(StateError, match=r"no certificate authority here \(no issued\)"):
        Authority(folder).revoke("clinic-a")


def test_what_another_authority_made_is_not_taken_for_our_own(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Authority(other).init()
    ours = (folder / "crl.pem").read_bytes()
    (folder / "crl.pem").write_bytes((other / "crl.pem").read_bytes())
    with pytest.raises(StateError, match=r"crl\.pem: the revocation list is not signed by this authority"):
        Authority(folder).show()
    (folder / "crl.pem").write_bytes(ours)
    shutil.copy(other / "server.pem", folder / "issued" / "0.pem")
    with pytest.raises(StateError, match=r"0\.pem: expected a certificate of this authority, got another"):
        Authority(folder).show()


def test_a_certificate_tells_its_client_serial_and_end(folder: Path) -> None:
    pem = (folder / "clinic-a.pem").read_bytes()
    (entry,) = [entry for entry in Authority(folder).show() if entry.name == "clinic-a"]
    assert caller_certificate(pem) == CallerCertificate("clinic-a", entry.serial, entry.valid_until)
    for other in ("server.pem", "ca.pem"):
        with pytest.raises(CertificateError, match="expected a certificate that names one client"):
            caller_certificate((folder / other).read_bytes())


SIGNER = Signer.new(1, NOW)
KEY = new_key().public_key()
LEAF = SIGNER.for_caller("clinic-a", KEY, 1, NOW)


@given(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", fullmatch=True))
@settings(max_examples=10, deadline=None)
def test_every_client_name_goes_through_a_certificate(name: str) -> None:
    assert caller_certificate(SIGNER.for_caller(name, KEY, 1, NOW).public_bytes(Encoding.PEM)).name == name


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_bytes_that_are_no_certificate_end_in_one_known_error(data: bytes) -> None:
    for pem in (data, b"-----BEGIN CERTIFICATE-----\n" + data + b"\n-----END CERTIFICATE-----\n"):
        with pytest.raises(CertificateError):
            caller_certificate(pem)


@given(st.integers(0, len(LEAF.public_bytes(Encoding.DER)) - 1), st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_a_certificate_with_a_wrong_byte_answers_or_ends_in_a_known_error(position: int, flip: int) -> None:
    der = bytearray(LEAF.public_bytes(Encoding.DER))
    der[position] ^= flip
    pem = ssl.DER_cert_to_PEM_cert(bytes(der)).encode()
    with suppress(CertificateError):
        caller_certificate(pem)


def test_a_usable_pair_is_valid_now_matching_and_private(folder: Path) -> None:
    pem, key = folder / "clinic-a.pem", folder / "clinic-a.key"
    require_usable(pem, key, NOW)
    cases = [
        (pem, key, NOW + timedelta(days=366), r"clinic-a\.pem expired on .* UTC; issue a new one with"),
        (pem, key, NOW - timedelta(days=1), r"clinic-a\.pem is not valid before .* set the clock right"),
        (pem, folder / "clinic-b.key", NOW, r"clinic-b\.key is not the key of .*clinic-a\.pem"),
        (pem, folder / "none.key", NOW, r"none\.key: No such file or directory"),
        (folder / "none.pem", key, NOW, r"none\.pem: No such file or directory"),
        (pem, pem, NOW, "expected a private key"),
        (key, key, NOW, "expected a certificate"),
        (folder, key, NOW, "Is a directory"),
    ]
    for cert_path, key_path, now, message in cases:
        with pytest.raises(ConfigError, match=message):
            require_usable(cert_path, key_path, now)
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="must be for its owner only, but has mode 640; run: chmod 600"):
        require_usable(pem, key, NOW)


def test_revocations_follow_the_file_and_outlive_a_damaged_one(folder: Path) -> None:
    said: list[str] = []
    crl = folder / "crl.pem"
    revocations = Revocations(crl, folder / "ca.pem", lambda event: said.append(event.text()))
    ours = caller_certificate((folder / "clinic-a.pem").read_bytes()).serial
    assert not revocations.revoked(ours)
    Authority(folder).revoke("clinic-a")
    assert revocations.revoked(ours)
    good = crl.read_bytes()
    crl.write_bytes(good[: len(good) // 2])
    assert revocations.revoked(ours)
    assert revocations.revoked(ours)
    assert said == [
        f"{crl}: expected a revocation list in PEM form, got something else; "
        "the list that was read before stays in force"
    ]
    crl.unlink()
    assert revocations.revoked(ours)
    assert len(said) == 2
    crl.write_bytes(good)
    Authority(folder).revoke("clinic-b")
    assert revocations.revoked(caller_certificate((folder / "clinic-b.pem").read_bytes()).serial)
    assert len(said) == 2


def test_revocations_need_a_good_list_of_the_right_authority_to_start(folder: Path, tmp_path: Path) -> None:
    Authority(tmp_path / "other").init()
    (tmp_path / "bad.pem").write_bytes(b"damaged")
    for crl, ca, message in (
        (folder / "none.pem", folder / "ca.pem", "No such file"),
        (tmp_path / "bad.pem", folder / "ca.pem", "expected a revocation list"),
        (tmp_path / "other" / "crl.pem", folder / "ca.pem", "is not signed by this authority"),
        (folder / "crl.pem", tmp_path / "bad.pem", "expected a certificate"),
    ):
        with pytest.raises(StateError, match=message):
            Revocations(crl, ca, print)


def served_name(folder: Path, pair: Path | None) -> str:
    """The name that a gRPC server sees in the certificate of a client with this pair, over real sockets."""

    def handle(_: bytes, context: grpc.ServicerContext) -> bytes:
        pems: Any = context.auth_context()["x509_pem_cert"]
        (pem,) = pems
        return caller_certificate(pem).name.encode()

    read = [(folder / name).read_bytes() for name in ("server.key", "server.pem", "ca.pem")]
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Name": grpc.unary_unary_rpc_method_handler(handle)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", methods),))
        credentials = grpc.ssl_server_credentials([(read[0], read[1])], read[2], require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        own = [Path(f"{pair}.{kind}").read_bytes() for kind in ("key", "pem")] if pair else []
        trusted = grpc.ssl_channel_credentials(read[2], *own)
        try:
            with grpc.secure_channel(f"localhost:{port}", trusted) as channel:
                call: Any = channel.unary_unary("/test.Test/Name")
                return str(call(b"", timeout=20).decode())
        finally:
            server.stop(None).wait()


def test_grpc_shakes_hands_with_these_files_and_tells_the_name(folder: Path) -> None:
    Authority(folder).issue("_odd.Name-")
    assert served_name(folder, folder / "clinic-a") == "clinic-a"
    assert served_name(folder, folder / "_odd.Name-") == "_odd.Name-"


def test_grpc_turns_away_who_has_no_valid_certificate_of_this_authority(folder: Path, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    other.init()
    other.issue("clinic-a")
    Authority(folder, clock=at(-40)).issue("late", days=30)
    for pair in (None, other.folder / "clinic-a", folder / "server", folder / "late"):
        with pytest.raises(grpc.RpcError) as caught:
            served_name(folder, pair)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_command_line_from_init_to_revoke(tmp_path: Path) -> None:
    certs = str(tmp_path / "certs")

    def certs_command(name: str, *arguments: str) -> click.testing.Result:
        return CliRunner().invoke(main, ["certs", name, "--dir", certs, *arguments], env={"COLUMNS": "160"})

    made = certs_command("init", "--host", "fl.example.org", "--host", "192.0.2.7", "--days", "100")
    assert made.exit_code == 0, made.output
    assert "fl.example.org" in made.output
    assert made.output.splitlines()[-1] == f"{certs}/ca.pem goes to every client, {certs}/ca.key to nobody"
    again = certs_command("init")
    assert (again.exit_code, again.output.count("\n")) == (2, 1)
    issued = certs_command("issue", "clinic-a", "--days", "90")
    assert issued.output.startswith(
        f"{certs}/clinic-a.pem and {certs}/clinic-a.key for client clinic-a (fedpvr:client:clinic-a), until "
    )
    refused = certs_command("issue", "clinic-a")
    assert refused.exit_code == 2
    assert refused.output.startswith("Error: 'clinic-a' has a certificate until")
    assert certs_command("issue", "clinic-a", "--renew").exit_code == 0
    assert "(fl.example.org, 192.0.2.7)" in certs_command("issue", "--server", "--renew").output
    assert certs_command("issue", "b", "--server", "--host", "b.example.org").exit_code == 0
    revoked = certs_command("revoke", "clinic-a")
    assert revoked.output == f"{certs}/crl.pem: newly revoked certificates of clinic-a: 2\n"
    listed = json.loads(certs_command("show", "--json").output)
    assert [(entry["name"], entry["kind"], entry["state"]) for entry in listed[1:]] == [
        ("b", "server", "valid"),
        *[("clinic-a", "client", "revoked")] * 2,
        *[("server", "server", "valid")] * 2,
    ]
    assert listed[0].keys() == {"name", "kind", "serial", "valid_from", "valid_until", "sans", "state"}
    credentials = certs_command("show").output
    assert all(text in credentials for text in ("clinic-a", "revoked", listed[1]["serial"][:8], "192.0.2.7"))


def test_no_name_is_broken_in_two_however_narrow_the_screen(tmp_path: Path) -> None:
    host, name = "a-host.of-some-department.hospital.example.org", "x" * 64
    authority = Authority(tmp_path / "certs")
    authority.init([host])
    authority.issue(name)
    authority.issue("alice", operator=True)
    shown = invoke("fedserver", "certs", "show", "--dir", str(authority.folder), env={"COLUMNS": "40"}).output
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert (lines["server"][0], lines["server"][-1]) == ("server", host)
    assert lines[name][:2] == ["client", "valid"]
    assert lines["alice"][:2] == ["operator", "valid"]


def test_usual_names_fit_into_eighty_columns(folder: Path) -> None:
    shown = invoke("fedserver", "certs", "show", "--dir", str(folder), env={"COLUMNS": "80"}).output
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert "..." not in shown


def test_a_renewed_server_keeps_the_hosts_it_was_given(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certs")
    authority.init(["fl.example.org"])
    assert authority.issue("server", hosts=(), renew=True).sans == ("fl.example.org",)
    assert authority.issue("backup", hosts=()).sans == ("fl.example.org",)
    authority.issue("server", hosts=["other.example.org", "192.0.2.7"], renew=True)
    later = Authority(tmp_path / "certs", clock=at(1))
    assert later.issue("server", hosts=(), renew=True).sans == ("other.example.org", "192.0.2.7")
    assert later.issue("backup", hosts=(), renew=True).sans == ("fl.example.org",)


def test_an_operators_certificate_is_no_clients(folder: Path) -> None:
    issued = Authority(folder).issue("alice", operator=True)
    assert (issued.kind, issued.sans) == ("operator", ("fedpvr:operator:alice",))
    shown = caller_certificate((folder / "alice.pem").read_bytes())
    assert (shown.name, shown.operator) == ("alice", True)
    with pytest.raises(ConfigError, match="'alice' is already known as operator; choose another name"):
        Authority(folder).issue("alice", renew=True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["issue", "a", "--operator", "--server"], 2, "Error: --server and --operator exclude each other"),
        (["show"], 1, "Error: certs: no certificate authority here (no ca.pem); make one with"),
        (["issue", "clinic-a"], 1, "Error: certs: no certificate authority here"),
        (["revoke", "clinic-a"], 1, "Error: certs: no certificate authority here"),
        (["issue"], 2, "Error: give the client's NAME, or --server"),
        (["issue", "a", "--host", "x"], 2, "Error: --host goes with --server"),
        (["issue", "server"], 2, "Error: a client's certificate cannot be called 'server'"),
        (["issue", "a/b"], 1, "Error: a client name has 1 to 64 letters"),
        (["init", "--days", "0"], 2, "Error: --days must be from 1 to 36500, got 0"),
        (
            ["init", "--host", "x:1"],
            2,
            "Error: --host must be a host name or an IP address without a port, got",
        ),
    ],
)
def test_what_cannot_work_ends_in_one_line_and_leaves_nothing(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("fedserver", "certs", *arguments)
    assert result.exit_code == code
    assert result.output.splitlines()[-1].startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["init", "issue", "show", "revoke"])
def test_every_command_for_certificates_ends_with_an_example(name: str) -> None:
    result = invoke("fedserver", "certs", name, "-h")
    assert result.output.rstrip().rsplit("Example:", 1)[1].strip().startswith(f"fedserver certs {name}")


def test_help_does_not_load_cryptography() -> None:
    code = (
        "import sys, fedserver.cli as c\n"
        "try: c.main(['certs', 'issue', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
