"""Targets: stored updates, certificates of peers, revocation lists and tokens."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from common.access.certificates import Revocations, caller_certificate
from common.errors import FedError
from common.tensors.layout import fingerprint
from fedclient.store.stored_update import Sender, StoredUpdate
from fedserver.keys.authority import Authority
from fedserver.keys.tokens import Tokens
from tests.fuzz import known, mutators
from tests.fuzz.target import Target

_SENDER = Sender(known.RUN_ID, known.CLIENT, fingerprint(known.MODEL.specs), 3)


def stored_update(data: bytes) -> None:
    """An update that a client finds in its state directory."""
    found = StoredUpdate.restored(data, _SENDER)
    assert len(found.payload) == found.encoding.encoded.num_bytes
    found.header(_SENDER)


def parcel_seeds() -> list[bytes]:
    """Under all settings."""
    found = []
    for config in known.CONFIGS:
        encoding = known.up(config)
        update = StoredUpdate(1, encoding, np.zeros(encoding.encoded.num_bytes, np.uint8), 1, 0.5, None, 1.0)
        found.append(b"".join(update.stored(_SENDER)))
    return found


@functools.cache
def _authority() -> Path:
    folder = known.folder() / "certs"
    Authority(folder).init()
    Authority(folder).issue("a")
    Authority(folder).issue("o", operator=True)
    Authority(folder).revoke("a")
    return folder


def certificate(data: bytes) -> None:
    """What a peer shows. TLS has checked it, but not what is in it."""
    shown = caller_certificate(data)
    assert shown.serial >= 0
    assert shown.expires.tzinfo is not None


def certificate_seeds() -> list[bytes]:
    """A client's, an operator's, a server's and the authority's."""
    return [(_authority() / f"{name}.pem").read_bytes() for name in ("a", "o", "server", "ca")]


def revocations(data: bytes) -> None:
    """A revocation list on the server's disk."""
    path = known.file_with(data, "crl.pem")
    assert Revocations(path, _authority() / "ca.pem", lambda line: None).revoked(1) is False


def revocation_seeds() -> list[bytes]:
    """With one certificate on it."""
    return [(_authority() / "crl.pem").read_bytes()]


def token(data: bytes) -> None:
    """A record of a token on the server's disk, and a token as a peer shows it."""
    folder = known.folder() / "tokens"
    folder.mkdir(exist_ok=True)
    (folder / "a.json").write_bytes(data)
    tokens = Tokens(folder)
    try:
        tokens.holder_of(data.decode(errors="replace"))
    except FedError:
        tokens.holder_of("a:secret")


def token_seeds() -> list[bytes]:
    """A record, and a token."""
    folder = known.folder() / "seed-tokens"
    Tokens(folder).issue("a", renew=True)
    return [(folder / "a.json").read_bytes(), (folder / "a.token").read_bytes()]


TARGETS = {
    "parcel": Target(stored_update, parcel_seeds),
    "certificate": Target(certificate, certificate_seeds),
    "revocations": Target(revocations, revocation_seeds),
    "token": Target(token, token_seeds, mutators.json_value),
}
