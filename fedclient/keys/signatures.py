"""Signatures with the key of a client's certificate."""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from common.access.certificates import certificate, private_key, read
from common.access.signing_request import SigningRequest

_SHA256 = ec.ECDSA(hashes.SHA256())


class KeySigner:
    """Signs with a private key on the curve P-256, as `certs` commands make them."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.key = _encoded(key.public_key())
        """The public half, in base64."""

    def sign(self, data: bytes) -> str:
        """A signature in base64."""
        return base64.b64encode(self._key.sign(data, _SHA256)).decode()


def signer_of(key_path: Path) -> KeySigner | None:
    """A signer for the key in a file; None for one of another kind."""
    key = read(key_path, private_key)
    return KeySigner(key) if isinstance(key, ec.EllipticCurvePrivateKey) else None


def key_of(certificate_path: Path) -> str:
    """The public key of a certificate, in base64."""
    key = read(certificate_path, certificate).public_key()
    return _encoded(key) if isinstance(key, ec.EllipticCurvePublicKey) else ""


def fingerprint(key: str) -> str:
    """Of a public key in base64, as `fedclient certs request` prints it; empty for what is none."""
    found = _decoded(key)
    return "" if found is None else SigningRequest("", found).fingerprint


def is_signed(key: str, data: bytes, signature: str) -> bool:
    """Whether whoever has the private half of this key has signed these bytes."""
    found = _decoded(key)
    try:
        if found is not None:
            found.verify(base64.b64decode(signature, validate=True), data, _SHA256)
            return True
    except (ValueError, InvalidSignature):
        pass
    return False


def _encoded(key: ec.EllipticCurvePublicKey) -> str:
    return base64.b64encode(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


def _decoded(key: str) -> ec.EllipticCurvePublicKey | None:
    try:
        found = load_der_public_key(base64.b64decode(key, validate=True))
    except Exception:  # The parser raises one of a dozen unrelated errors for bytes that are no key.
        return None
    return found if isinstance(found, ec.EllipticCurvePublicKey) else None
