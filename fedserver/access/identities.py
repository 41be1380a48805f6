"""By which credentials the clients of a run are known."""

from __future__ import annotations

from fedserver.access.authenticate import Caller


class Identities:
    """Notes who speaks for whom."""

    def __init__(self) -> None:
        self._clients: dict[str, str] = {}
        """Names of clients by the credential that they have presented."""
        self._credentials: dict[str, str] = {}
        """The last credential of each client."""

    def speaks(self, caller: Caller, name: str) -> None:
        """Raises unless this caller may speak for a client; notes by what it is known now."""
        caller.require(name)
        if caller.credential:
            self._credentials[name] = caller.credential
            self._clients[caller.credential] = name

    def client_of(self, credential: str) -> str | None:
        """The client that has this credential and no later one."""
        name = self._clients.get(credential)
        return name if name is not None and self._credentials.get(name) == credential else None
