"""What a dashboard is to show, where, and to whom."""

from __future__ import annotations

from dataclasses import dataclass

from common.access.credentials import is_loopback
from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """For `fedserver dashboard`, and for the process that a server starts."""

    run_dirs: tuple[str, ...]
    address: str
    """Where it listens."""
    certs: str | None = None
    """Folder with certificates: TLS, beyond this machine."""
    tokens: str | None = None
    """Folder with tokens, an operator's one of which is asked for, beyond this machine."""
    insecure: bool = False
    fd: int | None = None
    """The socket, from a server that has opened it."""
    parent: int | None = None
    """Process id of that server, with which the dashboard ends."""

    @property
    def encrypted(self) -> bool:
        """Whether it speaks TLS."""
        return self.certs is not None and not is_loopback(self.address)

    def require_safe(self, flag: str) -> None:
        """Raises if others could look who are nobody's operators, or read along."""
        if is_loopback(self.address):
            return
        if self.certs is None and not self.insecure:
            raise ConfigError(
                f"{flag} {self.address} can be reached from other machines, and nothing is encrypted; "
                "give --certs DIR (see fedserver certs), or say --insecure"
            )
        if self.certs is None and self.tokens is None:
            raise ConfigError(
                f"{flag} {self.address} can be reached from other machines, and everybody could look; "
                "give --tokens DIR (see fedserver tokens) or --certs DIR"
            )
