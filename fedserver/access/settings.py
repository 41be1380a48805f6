"""How clients come in: over TLS or not, with a certificate, a token or nothing."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common.access.credentials import is_loopback
from common.errors import ConfigError
from common.events import Emit
from fedserver.access.authenticate import (
    Authenticator,
    CertificateAuthenticator,
    NoAuthentication,
    TokenAuthenticator,
)
from fedserver.keys.issued import SERVER
from fedserver.keys.tokens import Tokens


@dataclass(frozen=True)
class TlsFiles:
    """The content of the files that TLS needs."""

    key: bytes
    certificate: bytes
    client_authority: bytes | None
    """Clients need a certificate of this authority; None: they need none."""


@dataclass(frozen=True)
class AccessSettings:
    """What `fedserver run` is told of it."""

    certs: Path | None = None
    """Folder of the certificate authority, without ca.key: TLS."""
    tokens: Path | None = None
    """Folder of tokens; clients then need no certificate."""
    insecure: bool = False

    def require_safe(self, listen: str) -> None:
        """Raises if others could reach a server that nothing protects."""
        if self.certs is None and not self.insecure and not is_loopback(listen):
            raise ConfigError(
                f"--listen {listen} can be reached from other machines, and nothing is encrypted; "
                "give --certs DIR (see fedserver certs), or say --insecure"
            )

    def authenticator(self, emit: Emit) -> Authenticator:
        """Who is let in."""
        if self.tokens is not None:
            if not self.tokens.is_dir():
                command = shlex.join(["fedserver", "tokens", "issue", "NAME", "--dir", str(self.tokens)])
                raise ConfigError(f"--tokens {self.tokens}: no such folder; make it with: {command}")
            return TokenAuthenticator(Tokens(self.tokens))
        if self.certs is None:
            return NoAuthentication()
        from common.access.certificates import Revocations

        return CertificateAuthenticator(Revocations(self.certs / "crl.pem", self.certs / "ca.pem", emit))

    @property
    def tls_files(self) -> tuple[Path, Path, Path]:
        """The server's certificate, its key and the authority."""
        assert self.certs is not None, "without a folder there is no TLS"
        return self.certs / f"{SERVER}.pem", self.certs / f"{SERVER}.key", self.certs / "ca.pem"

    def tls(self) -> TlsFiles | None:
        """The files for TLS; None without."""
        if self.certs is None:
            return None
        from common.access.certificates import SERVER_USE, certificate, is_for, read, remedy, require_usable

        cert, key, authority = self.tls_files
        require_usable(cert, key, datetime.now(UTC))
        if not is_for(read(cert, certificate), SERVER_USE):
            new = remedy(self.certs, "--server")
            raise ConfigError(f"{cert} is not a server's certificate but a client's; issue one with: {new}")
        ca = authority.read_bytes() if self.tokens is None else None
        return TlsFiles(key.read_bytes(), cert.read_bytes(), ca)
