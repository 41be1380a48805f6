"""A request for a certificate: the key is made where it is used, and only its public half travels.

site                     NAME.key (stays there), NAME.csr --> whoever has the authority's key
authority                NAME.pem                         --> the site
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from common import atomic
from common.access.certificates import parsing, private_key, read
from common.access.private_files import require_private
from common.errors import CertificateError, ConfigError
from common.names import is_name, require_name

MAX_REQUEST_BYTES = 16_384


@dataclass(frozen=True)
class SigningRequest:
    """Who asks for a certificate, and for which key."""

    name: str
    key: ec.EllipticCurvePublicKey

    @property
    def fingerprint(self) -> str:
        """Of the key; both sides see it and can compare it over the telephone."""
        info = self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        digest = hashlib.sha256(info).hexdigest()[:32]
        return ":".join(digest[at : at + 4] for at in range(0, len(digest), 4))


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as the text of its file; what protects it is the file's mode."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def common_name(name: str) -> x509.Name:
    """The subject of a certificate."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def request_pem(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request as the text of its file, signed with the key so that nobody can ask for another's."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(common_name(name))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def signing_request(pem: bytes) -> SigningRequest:
    """The request in a PEM text, which may come from anywhere."""
    if len(pem) > MAX_REQUEST_BYTES:
        raise CertificateError(f"expected a request of at most {MAX_REQUEST_BYTES} bytes, got {len(pem)}")
    with parsing("a signing request"):
        found = x509.load_pem_x509_csr(pem)
        signed, key = found.is_signature_valid, found.public_key()
        names = [str(entry.value) for entry in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not signed:
        raise CertificateError("the request is not signed with its own key; ask for another")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(
            "expected a key on the curve P-256, as fedclient certs request makes, got another"
        )
    if len(names) != 1 or not is_name(names[0]):
        raise CertificateError(
            "expected a request with the name of one client as its common name, got another"
        )
    return SigningRequest(names[0], key)


def make_request(folder: Path, name: str) -> SigningRequest:
    """Makes NAME.key, unless it is there, and NAME.csr.

    A key that is there is used again: it goes with the certificate in use and with the next one.
    """
    require_name(name)
    atomic.make_private(folder)
    key_path = folder / f"{name}.key"
    if key_path.exists():
        key = _own_key(key_path)
    else:
        key = new_key()
        atomic.write_bytes(key_path, key_pem(key), atomic.PRIVATE)
    atomic.write_bytes(folder / f"{name}.csr", request_pem(name, key), atomic.USUAL)
    return SigningRequest(name, key.public_key())


def _own_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        found = read(path, private_key)
    except CertificateError as error:
        raise ConfigError(f"{error}; move it away, and a new key will be made") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: expected a key on the curve P-256, got another; move it away")
    require_private(path)
    return found
