"""The key of a certificate authority, and the documents it signs.

Keys are EC P-256. A client's or operator's certificate names it as a URI, since not every name is a DNS name.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from common.access.certificates import CLIENT_URI, CLIENT_USE, OPERATOR_URI, SERVER_USE, is_for
from common.access.signing_request import common_name, new_key
from common.errors import ConfigError
from fedserver.keys.issued import CLIENT, MAX_DAYS, OPERATOR, SERVER, Issued

BACKDATED = timedelta(minutes=10)
"""How far a peer's clock may be behind the authority's."""
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?({_LABEL}\.)*{_LABEL}")


@dataclass(frozen=True)
class Signer:
    """A private key and the certificate of the authority that it belongs to."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, days: int, now: datetime) -> Signer:
        """An authority that did not exist before; the number tells it from others."""
        key = new_key()
        name = common_name(f"FedPVR CA {secrets.token_hex(4)}")
        builder = _builder(name, name, key.public_key(), now, now + _days(days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(authority=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    def for_caller(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        days: int,
        now: datetime,
        *,
        operator: bool = False,
    ) -> x509.Certificate:
        """A certificate with which a client, or an operator, shows who it is."""
        sans = [x509.UniformResourceIdentifier((OPERATOR_URI if operator else CLIENT_URI) + name)]
        return self._issue(name, sans, CLIENT_USE, key, days, now)

    def for_server(
        self, name: str, hosts: Sequence[str], key: ec.EllipticCurvePublicKey, days: int, now: datetime
    ) -> x509.Certificate:
        """A certificate with which a server shows that it is at these hosts."""
        if not hosts:
            raise ConfigError("--host must name at least one host of the server, got none")
        sans = [_alternative_name(host) for host in dict.fromkeys(hosts)]
        return self._issue(name, sans, SERVER_USE, key, days, now)

    def revocation_list(
        self, revoked: Iterable[x509.RevokedCertificate], now: datetime
    ) -> x509.CertificateRevocationList:
        """The list of revoked certificates; it holds until the next one, so it ends with the authority."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - BACKDATED)
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(int(now.timestamp() * 1e6)), critical=False)
            .add_extension(self._key_identifier(), critical=False)
        )
        for entry in revoked:
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self.key, hashes.SHA256())

    def _issue(
        self,
        name: str,
        sans: Sequence[x509.GeneralName],
        purpose: x509.ObjectIdentifier,
        key: ec.EllipticCurvePublicKey,
        days: int,
        now: datetime,
    ) -> x509.Certificate:
        """No certificate outlives its authority: it could not be used."""
        end = min(now + _days(days), self.certificate.not_valid_after_utc)
        builder = (
            _builder(common_name(name), self.certificate.subject, key, now, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(sans), critical=False)
            .add_extension(self._key_identifier(), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())

    def _key_identifier(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())


def describe(issued: x509.Certificate, revoked: set[int], now: datetime) -> Issued:
    """What a listing says of a certificate of this authority, or of the authority's own."""
    extensions = issued.extensions
    if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        kind, sans = "ca", []
    else:
        sans = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        kind = SERVER if is_for(issued, SERVER_USE) else CLIENT
        if any(str(san.value).startswith(OPERATOR_URI) for san in sans):
            kind = OPERATOR
    return Issued(
        name=str(issued.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value),
        kind=kind,
        serial=issued.serial_number,
        valid_from=issued.not_valid_before_utc,
        valid_until=issued.not_valid_after_utc,
        sans=tuple(str(san.value) for san in sans),
        state=_state(issued, revoked, now),
    )


def _state(issued: x509.Certificate, revoked: set[int], now: datetime) -> str:
    if issued.serial_number in revoked:
        return "revoked"
    if now > issued.not_valid_after_utc:
        return "expired"
    return "not yet valid" if now < issued.not_valid_before_utc else "valid"


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _days(days: int) -> timedelta:
    if not 1 <= days <= MAX_DAYS:
        raise ConfigError(f"--days must be from 1 to {MAX_DAYS}, got {days}")
    return timedelta(days=days)


def _usage(*, authority: bool) -> x509.KeyUsage:
    """An authority signs certificates and revocation lists and nothing else; all others sign handshakes."""
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    """An IP address as such and anything else as a DNS name."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        # A name that ends in a number is a mistyped address.
        if len(host) > 253 or not _HOST.fullmatch(host) or host.rpartition(".")[2].isdecimal():
            raise ConfigError(
                f"--host must be a host name or an IP address without a port, got {host!r}"
            ) from None
        return x509.DNSName(host)
