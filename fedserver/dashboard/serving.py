"""The dashboard on a socket: who is let in, TLS, and an end that waits for nobody."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from common.access.credentials import is_loopback
from common.events import unheard
from fedserver.dashboard.access import CERTIFICATE, Guard
from fedserver.dashboard.app import application
from fedserver.dashboard.assignment import Assignment
from fedserver.dashboard.hub import Hub


def serve(listening: socket.socket, assignment: Assignment) -> None:
    """Serves until a signal comes."""
    guard, tls = _guard(assignment)
    app, hub = application([Path(run_dir) for run_dir in assignment.run_dirs], guard)
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    config.load()
    config.ssl = tls
    _Server(config, hub).run(sockets=[listening])


def _guard(assignment: Assignment) -> tuple[Guard, ssl.SSLContext | None]:
    """Who is let in, by what, and how that is encrypted."""
    if is_loopback(assignment.address):
        return Guard(), None
    from fedserver.access.authenticate import Penance
    from fedserver.access.settings import AccessSettings

    certs = None if assignment.certs is None else Path(assignment.certs)
    tokens = None if assignment.tokens is None else Path(assignment.tokens)
    access = AccessSettings(certs, tokens, assignment.insecure)
    authenticator = access.authenticator(unheard)
    if access.tls() is None:
        return Guard(authenticator, Penance()), None
    certificate, key, authority = access.tls_files
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    if tokens is None:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(authority)
    return Guard(authenticator, None if tokens is None else Penance(), encrypted=True), tls


class _Connection(H11Protocol):
    """Tells the application which certificate the other side has shown."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        der = shown.getpeercert(binary_form=True) if shown is not None else None
        if der is None:
            return
        pem, app = ssl.DER_cert_to_PEM_cert(der).encode(), self.app

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            scope[CERTIFICATE] = pem
            await app(scope, receive, send)

        self.app = noted


class _Server(uvicorn.Server):
    """Sends open pages away when it ends: their streams would go on for ever."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends."""
        self._hub.close()
        await super().shutdown(sockets)
