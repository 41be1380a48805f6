"""What a client shows to a server, and how it knows the server: files, read again for every connection."""

from __future__ import annotations

import ipaddress
import os
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common.access.private_files import require_private
from common.errors import CertificateError, ConfigError

TOKEN_VARIABLE = "FEDPVR_TOKEN"


@dataclass(frozen=True)
class Credentials:
    """The content of the files."""

    ca: bytes | None = None
    """The authority of the server's certificate; None: no TLS."""
    certificate: tuple[bytes, bytes] | None = None
    """Key and certificate of this client, in gRPC's order."""
    token: str | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token is not None else ()


@dataclass(frozen=True)
class Access:
    """Where the files are."""

    name: str = ""
    """Empty: the only operator's of whom there is a certificate."""
    certs: Path | None = None
    """Holds ca.pem and, unless there is a token, NAME.pem and NAME.key."""
    token_file: Path | None = None
    """Or the folder with NAME.token."""

    def read(self) -> Credentials:
        """Reads them; raises if they cannot be used now."""
        # Slow to import, and not needed for --help.
        from common.access.certificates import certificate, read, require_usable

        token = self._token()
        if self.certs is None:
            return Credentials(token=token)
        try:
            ca = (self.certs / "ca.pem").read_bytes()
            read(self.certs / "ca.pem", certificate)
            if token is not None:
                return Credentials(ca, token=token)
            cert, key = self.files()
            require_usable(cert, key, datetime.now(UTC))
            return Credentials(ca, (key.read_bytes(), cert.read_bytes()))
        except OSError as error:
            raise ConfigError(
                f"--certs {self.certs}: {error.filename}: {error.strerror}; it must hold the server's ca.pem"
            ) from error
        except CertificateError as error:
            raise ConfigError(f"--certs {self.certs}: {error}; it must hold the server's ca.pem") from error

    def files(self) -> tuple[Path, Path]:
        """Where the certificate and its key are."""
        assert self.certs is not None, "there is no certificate without a folder"
        name = self.name or self._operator(self.certs)
        return self.certs / f"{name}.pem", self.certs / f"{name}.key"

    def _operator(self, folder: Path) -> str:
        """Whoever asks under no name is the operator, if it is clear who that is."""
        from common.access.certificates import callers_in

        callers = callers_in(folder)
        operators = [shown.name for shown in callers if shown.operator]
        if len(operators) == 1:
            return operators[0]
        if operators:
            raise ConfigError(
                f"--certs {folder} holds certificates of operators {', '.join(operators)}; "
                "choose one of them with --name"
            )
        others = ", ".join(shown.name for shown in callers)
        choice = f"give --name ({others}), or " if others else ""
        command = ["fedserver", "certs", "issue", "--operator", "operator", "--dir", str(folder)]
        raise ConfigError(
            f"--certs {folder} holds no operator's certificate; {choice}issue one with: {shlex.join(command)}"
        )

    def _token(self) -> str | None:
        """From the file, or from the environment."""
        if self.token_file is None:
            found, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
            if not found:
                return None
        else:
            is_folder = self.name and self.token_file.is_dir()
            file = self.token_file / f"{self.name}.token" if is_folder else self.token_file
            where = f"--token-file {file}"
            try:
                require_private(file)
                found = file.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{where} cannot be read: {error}") from error
        token = found.strip()
        if not (token.isascii() and token.isprintable() and token):
            raise ConfigError(f"{where} must hold one token, in one line")
        return token


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT can be reached from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_encrypted(server: str, certs: Path | None, insecure: bool) -> None:
    """Raises where what is said to a server could be read and changed on its way."""
    if certs is None and not insecure and not is_loopback(server):
        raise ConfigError(
            f"{server} is on another machine, and nothing would be encrypted; "
            "give --certs DIR with the server's ca.pem or, in a private network, --insecure"
        )
