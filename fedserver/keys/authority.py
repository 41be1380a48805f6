"""A federation's own certificate authority, as a folder.

ca.pem, ca.key           the authority; ca.pem goes to everybody, ca.key to nobody
server.pem, server.key   for the server
NAME.pem, NAME.key       for the client or operator NAME; no key where the client has made its own
crl.pem                  the certificates that were revoked
issued/SERIAL.pem        every certificate that was ever issued

The record of what was issued is the certificates themselves, a file each: to issue one changes no other file,
and a renewed certificate can still be revoked by its old serial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from common import atomic
from common.access.certificates import certificate, hosts_of, minute, private_key, read, revocation_list
from common.access.signing_request import SigningRequest, key_pem, new_key
from common.errors import CertificateError, ConfigError, StateError
from common.locks import lock
from common.names import natural, require_name
from fedserver.keys.issued import AUTHORITY_DAYS, CLIENT, DAYS, HOSTS, OPERATOR, SERVER, Issued
from fedserver.keys.signer import Signer, describe

_RESERVED = ("ca", "crl")

T = TypeVar("T")


class Authority:
    """Issues and revokes the certificates of one federation."""

    def __init__(self, folder: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.folder = folder
        self._clock = clock

    def init(self, hosts: Sequence[str] = HOSTS, days: int = AUTHORITY_DAYS) -> None:
        """Makes the authority, which lasts `days`, the server's certificate and an empty revocation list."""
        now = self._clock()
        signer = Signer.new(days, now)
        key = new_key()
        server = signer.for_server(SERVER, hosts, key.public_key(), min(days, DAYS), now)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._require_empty()
        with self._locked():
            # Another process may have made one in between.
            self._require_empty()
            self.folder.chmod(0o700)
            (self.folder / "issued").mkdir(mode=0o700)
            self._write("ca.key", key_pem(signer.key), 0o600)
            self._write("ca.pem", signer.certificate.public_bytes(Encoding.PEM))
            self._write_list(signer.revocation_list([], now))
            self._hand_out(SERVER, server, key)

    def issue(
        self,
        name: str,
        days: int = DAYS,
        *,
        hosts: Sequence[str] | None = None,
        operator: bool = False,
        renew: bool = False,
    ) -> Issued:
        """Makes NAME.pem and NAME.key for a client, an operator or, with `hosts`, a server.

        No hosts at all stand for those of the certificate that this server has.
        """
        kind = SERVER if hosts is not None else OPERATOR if operator else CLIENT
        with self._issuing(name, kind, renew) as (signer, now):
            key = new_key()
            if hosts is None:
                issued = signer.for_caller(name, key.public_key(), days, now, operator=operator)
            else:
                at = hosts or self._hosts(name)
                issued = signer.for_server(name, at, key.public_key(), days, now)
            self._hand_out(name, issued, key)
            return describe(issued, set(), now)

    def sign(
        self, request: SigningRequest, days: int = DAYS, *, operator: bool = False, renew: bool = False
    ) -> Issued:
        """Makes NAME.pem for a client or an operator whose key is elsewhere."""
        name = request.name
        with self._issuing(name, OPERATOR if operator else CLIENT, renew) as (signer, now):
            issued = signer.for_caller(name, request.key, days, now, operator=operator)
            self._hand_out(name, issued)
            return describe(issued, set(), now)

    @contextmanager
    def _issuing(self, name: str, kind: str, renew: bool) -> Iterator[tuple[Signer, datetime]]:
        """Who signs, and when; raises unless the name can have another certificate of this kind."""
        require_name(name)
        if name.lower() in _RESERVED or (kind != SERVER and name.lower() == SERVER):
            raise ConfigError(f"a {kind}'s certificate cannot be called {name!r}; choose another name")
        self._require_made()
        with self._locked():
            now, signer = self._clock(), self._signer()
            end = signer.certificate.not_valid_after_utc
            if now > end:
                raise StateError(
                    f"{self.folder}: this authority expired on {minute(end)}; make a new one in another --dir"
                )
            self._require_free(name, kind, renew)
            yield signer, now

    def revoke(self, name: str) -> list[int]:
        """Puts all certificates of a name on the revocation list; returns the serials that are new on it."""
        self._require_made()
        with self._locked():
            now, signer = self._clock(), self._signer()
            serials = {entry.serial for entry in self._issued() if entry.name == name}
            if not serials:
                raise ConfigError(
                    f"expected a name that has a certificate, got {name!r}; "
                    f"see: fedserver certs show --dir {self.folder}"
                )
            old = self._list()
            fresh = sorted(serials - {entry.serial_number for entry in old})
            if fresh:
                entry = x509.RevokedCertificateBuilder().revocation_date(now)
                revoked = [*old, *(entry.serial_number(serial).build() for serial in fresh)]
                self._write_list(signer.revocation_list(revoked, now))
            return fresh

    def show(self) -> list[Issued]:
        """The authority, then every certificate it has issued, by name and age."""
        self._require_made()
        return [describe(self._ca(), set(), self._clock()), *self._issued()]

    def _issued(self) -> list[Issued]:
        ca, now = self._ca(), self._clock()
        revoked = {entry.serial_number for entry in self._list()}
        found = []
        for path in (self.folder / "issued").glob("*.pem"):
            issued = self._read(f"issued/{path.name}", certificate)
            try:
                issued.verify_directly_issued_by(ca)
                found.append(describe(issued, revoked, now))
            except Exception as error:
                raise StateError(
                    f"{path}: expected a certificate of this authority, got another; remove it"
                ) from error
        return sorted(found, key=lambda entry: (natural(entry.name), entry.valid_from, entry.serial))

    def _hosts(self, name: str) -> Sequence[str]:
        """The hosts of the certificate that a server has, else of the one that there is from the start."""
        newest = sorted(self._issued(), key=lambda entry: entry.valid_from)
        known = {entry.name: entry.sans for entry in newest if entry.kind == SERVER}
        for here in (name, SERVER):
            with suppress(CertificateError):  # It may have been moved to where the server runs.
                known[here] = tuple(hosts_of(read(self.folder / f"{here}.pem", certificate)))
        return known.get(name) or known.get(SERVER) or HOSTS

    def _require_free(self, name: str, kind: str, renew: bool) -> None:
        for entry in self._issued():
            if entry.name != name or entry.state in ("revoked", "expired"):
                continue
            if entry.kind != kind:
                raise ConfigError(
                    f"{name!r} is already known as {entry.kind}; choose another name for this {kind}"
                )
            if not renew:
                raise ConfigError(
                    f"{name!r} has a certificate until {minute(entry.valid_until)}; give --renew for another"
                )

    def _require_empty(self) -> None:
        held = sorted(path.name for path in self.folder.iterdir() if path.name != ".lock")
        if held:
            raise ConfigError(
                f"--dir {self.folder} must be new or empty for a new authority, but holds {held[0]}"
            )

    def _require_made(self) -> None:
        for name in ("ca.pem", "issued"):
            if not (self.folder / name).exists():
                raise StateError(
                    f"{self.folder}: no certificate authority here (no {name}); "
                    f"make one with: fedserver certs init --dir {self.folder}"
                )

    def _signer(self) -> Signer:
        ca, key = self._ca(), self._read("ca.key", private_key)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
            raise StateError(f"{self.folder}/ca.key is not the key of ca.pem; restore both from a backup")
        return Signer(key, ca)

    def _ca(self) -> x509.Certificate:
        return self._read("ca.pem", certificate)

    def _list(self) -> x509.CertificateRevocationList:
        ca = self._ca()
        return self._read("crl.pem", lambda pem: revocation_list(pem, ca))

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T:
        try:
            return read(self.folder / name, parse)
        except CertificateError as error:
            raise StateError(f"{error}; restore it from a backup") from error

    def _hand_out(
        self, name: str, issued: x509.Certificate, key: ec.EllipticCurvePrivateKey | None = None
    ) -> None:
        """The record comes first: a certificate that nobody knows of could not be revoked."""
        pem = issued.public_bytes(Encoding.PEM)
        self._write(f"issued/{issued.serial_number:x}.pem", pem)
        if key is not None:
            self._write(f"{name}.key", key_pem(key), 0o600)
        self._write(f"{name}.pem", pem)

    def _write_list(self, revoked: x509.CertificateRevocationList) -> None:
        self._write("crl.pem", revoked.public_bytes(Encoding.PEM))

    def _write(self, name: str, data: bytes, mode: int = 0o644) -> None:
        atomic.write_bytes(self.folder / name, data, mode)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time: of two lists of revoked certificates written at once, one would be lost."""
        with (self.folder / ".lock").open("w") as file:
            lock(file, wait=True)
            yield
