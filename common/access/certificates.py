"""Certificates at run time: whose they are, until when, with which key, and whether they were revoked."""

from __future__ import annotations

import shlex
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from common.access.private_files import require_private
from common.atomic import file_stamp
from common.errors import CertificateError, ConfigError, FedError, StateError
from common.events import Emit, Trouble
from common.names import is_name

CLIENT_URI, OPERATOR_URI = "fedpvr:client:", "fedpvr:operator:"
"""Before a name in its certificate's alternative names; a DNS name could not hold every name."""

CLIENT_USE, SERVER_USE = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH

T = TypeVar("T")


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Broken bytes make the parser raise one of a dozen unrelated errors, some only when a field is read."""
    try:
        yield
    except FedError:
        raise
    except Exception as error:
        raise CertificateError(f"expected {what} in PEM form, got something else") from error


def certificate(pem: bytes) -> x509.Certificate:
    """The first certificate of a PEM text, all of it read."""
    with parsing("a certificate"):
        found = x509.load_pem_x509_certificate(pem)
        _ = (
            found.extensions,
            found.subject,
            found.issuer,
            found.not_valid_before_utc,
            found.not_valid_after_utc,
        )
        return found


def shown_certificate(der: bytes) -> x509.Certificate:
    """A certificate as a peer shows it in a handshake."""
    return certificate(ssl.DER_cert_to_PEM_cert(der).encode())


def private_key(pem: bytes) -> PrivateKeyTypes:
    """The private key of a PEM text."""
    with parsing("a private key without a password"):
        return load_pem_private_key(pem, password=None)


def revocation_list(pem: bytes, authority: x509.Certificate) -> x509.CertificateRevocationList:
    """The revocation list of a PEM text; raises unless this authority has signed it."""
    with parsing("a revocation list"):
        found = x509.load_pem_x509_crl(pem)
        signed = found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
        _ = found.extensions, [entry.serial_number for entry in found]
    if not signed or found.issuer != authority.subject:
        raise CertificateError("the revocation list is not signed by this authority")
    return found


def read(path: Path, parse: Callable[[bytes], T]) -> T:
    """What one of the functions above makes of a file; errors name the file."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from error
    except CertificateError as error:
        raise CertificateError(f"{path}: {error}") from error


@dataclass(frozen=True)
class CallerCertificate:
    """What a server wants to know of a certificate that a caller shows."""

    name: str
    """The client or operator that it was issued to."""
    serial: int
    """The number by which it is revoked."""
    expires: datetime
    """The moment after which it is not valid any more."""
    operator: bool = False
    """Whether it is an operator's, who takes no part in a run."""


def caller_certificate(pem: bytes) -> CallerCertificate:
    """Reads the certificate that a caller has shown; raises for one that names no client and no operator."""
    with parsing("a certificate"):
        found = certificate(pem)
        uris = _alternative_names(found).get_values_for_type(x509.UniformResourceIdentifier)
        return _named(uris, found.serial_number, found.not_valid_after_utc)


def _named(uris: list[str], serial: int, expires: datetime) -> CallerCertificate:
    named = [
        CallerCertificate(uri.removeprefix(prefix), serial, expires, prefix == OPERATOR_URI)
        for uri in uris
        for prefix in (CLIENT_URI, OPERATOR_URI)
        if uri.startswith(prefix)
    ]
    if len(named) != 1 or not is_name(named[0].name):
        raise CertificateError(
            f"expected a certificate that names one client ({CLIENT_URI}NAME) or operator, got one that does "
            "not; issue one with: fedserver certs issue NAME"
        )
    return named[0]


def callers_in(folder: Path) -> list[CallerCertificate]:
    """The certificates of a folder whose keys are there too, by name, but for servers'."""
    found = []
    for path in sorted(folder.glob("*.pem")):
        with suppress(OSError, CertificateError):
            shown = caller_certificate(path.read_bytes())
            if shown.name == path.stem and path.with_suffix(".key").exists():
                found.append(shown)
    return found


def _alternative_names(found: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def hosts_of(found: x509.Certificate) -> list[str]:
    """The names and addresses of a server's certificate."""
    names = _alternative_names(found)
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def is_for(found: x509.Certificate, purpose: x509.ObjectIdentifier) -> bool:
    """Whether a certificate may be used as a client's or a server's (`CLIENT_USE`, `SERVER_USE`)."""
    try:
        return purpose in found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True


def is_issued_by(found: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether this authority has signed a certificate."""
    try:
        found.verify_directly_issued_by(authority)
    except Exception:
        return False
    return True


def remedy(folder: Path, *words: str) -> str:
    """The command that issues another certificate, to be run where the authority's key is."""
    return shlex.join(["fedserver", "certs", "issue", *words, "--renew", "--dir", str(folder)])


def minute(moment: datetime) -> str:
    """A moment as people read it."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def require_usable(cert_path: Path, key_path: Path, now: datetime) -> None:
    """Raises unless the certificate is valid now and the key is its own, for its owner only."""
    try:
        cert, key = read(cert_path, certificate), read(key_path, private_key)
    except CertificateError as error:
        raise ConfigError(f"{error}; a certificate and its key come from: {renewal(cert_path)}") from error
    if now > cert.not_valid_after_utc:
        raise ConfigError(
            f"{cert_path} expired on {minute(cert.not_valid_after_utc)}; "
            f"issue a new one with: {renewal(cert_path)}"
        )
    if now < cert.not_valid_before_utc:
        raise ConfigError(
            f"{cert_path} is not valid before {minute(cert.not_valid_before_utc)}, "
            f"and it is {minute(now)} here; set the clock right"
        )
    if key.public_key() != cert.public_key():
        raise ConfigError(f"{key_path} is not the key of {cert_path}; use the two that were issued together")
    require_private(key_path)


def renewal(path: Path) -> str:
    """How to replace a certificate: by one of the same kind, if it can be read."""
    kind, name = ["--server"] if path.stem == "server" else [], [path.stem]
    with suppress(OSError, CertificateError):
        pem = path.read_bytes()
        if is_for(certificate(pem), SERVER_USE):
            kind = ["--server"]
        elif caller_certificate(pem).operator:
            kind = ["--operator"]
    return remedy(path.parent, *kind, *name)


class Revocations:
    """The serials of a revocation list, which is read again whenever its file changes."""

    def __init__(self, path: Path, ca_path: Path, emit: Emit) -> None:
        self._path = path
        self._emit = emit
        self._stamp = file_stamp(path)
        try:
            self._authority = read(ca_path, certificate)
            self._serials = self._read()
        except CertificateError as error:
            raise StateError(
                f"{error}; take ca.pem and crl.pem from where fedserver certs made them"
            ) from error

    def revoked(self, serial: int) -> bool:
        """Whether a certificate was revoked, by the newest list that could be read."""
        stamp = file_stamp(self._path)
        if stamp != self._stamp:
            # Once for every change, also on an event loop: 0.2 ms for ten serials, 60 ms for ten thousand.
            # The stamp comes first: a change in between is seen next time, a damaged list is reported once.
            self._stamp = stamp
            try:
                self._serials = self._read()
            except CertificateError as error:
                self._emit(Trouble(reason=f"{error}; the list that was read before stays in force"))
        return serial in self._serials

    def _read(self) -> frozenset[int]:
        found = read(self._path, lambda pem: revocation_list(pem, self._authority))
        return frozenset(entry.serial_number for entry in found)
