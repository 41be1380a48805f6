"""Who may look: anybody on this machine, or an operator with a certificate or a token.

A page that somebody else made must not look either: a dashboard without credentials answers only to a name of
this machine, a cookie is sent to nobody else's page, and there is nothing that a request could change.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.access.credentials import is_loopback
from common.errors import AccessError

if TYPE_CHECKING:  # They bring a library along that a dashboard for this machine does not need.
    from fedserver.access.authenticate import Authenticator, Penance

BEARER = "Bearer "
CERTIFICATE = "fedpvr.certificate"
"""Where a connection notes the certificate that TLS has checked, as PEM."""
COOKIE = "fedpvr_session"
MAX_SESSIONS = 1000
MAX_FORM_BYTES = 4096
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>FedPVR dashboard</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/static/style.css"><body class="login"><main><h1>FedPVR dashboard</h1>
<p>{reason}</p><form method="post" action="/login"><label for="token">Operator's token</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button>Look</button></form></main></body></html>"""
PUBLIC = frozenset({"/static/style.css"})
"""What the page that asks for a token needs."""


@dataclass(frozen=True)
class Guard:
    """Decides who may look."""

    authenticator: Authenticator | None = None
    """None: whoever is on this machine."""
    penance: Penance | None = None
    """For wrong tokens, where a token is asked for."""
    encrypted: bool = False
    _sessions: dict[str, str] = field(default_factory=dict)

    @property
    def asks_for_token(self) -> bool:
        """Whether a token opens the door, and no certificate."""
        return self.penance is not None

    def require(self, scope: Scope, headers: Headers, cookies: dict[str, str]) -> None:
        """Raises unless a request may be answered."""
        if self.authenticator is None:
            host = headers.get("host", "")
            if not is_loopback(host if host.rpartition(":")[2].isdecimal() else f"{host}:80"):
                raise AccessError(f"this dashboard is for this machine; ask for localhost, not {host!r}")
            return
        authorization = headers.get("authorization", "")
        token = self._sessions.get(cookies.get(COOKIE, ""))
        if not authorization and token is not None:
            authorization = BEARER + token
        peer = ":".join(map(str, scope.get("client") or ("", 0)))
        caller = self.authenticator.admit(peer, scope.get(CERTIFICATE), authorization)
        caller.require_operator()

    async def log_in(self, scope: Scope, token: str) -> str:
        """A session for a token; raises if it is none of an operator's."""
        assert self.authenticator is not None, "nobody is asked where nobody has to be"
        assert self.penance is not None, "only tokens are typed"
        peer = ":".join(map(str, scope.get("client") or ("", 0)))
        try:
            self.authenticator.admit(peer, None, BEARER + token).require_operator()
        except AccessError:
            await self.penance.serve(peer)
            raise
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        session = secrets.token_urlsafe(32)
        self._sessions[session] = token
        return session


class AccessMiddleware:
    """Lets in whom the guard lets in, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        await (await self._answer(request))(scope, receive, sent)

    async def _answer(self, request: Request) -> ASGIApp:
        guard = self._guard
        try:
            if guard.asks_for_token and request.method == "POST" and request.url.path == "/login":
                return await self._log_in(request)
            if not (guard.asks_for_token and request.url.path in PUBLIC):
                guard.require(request.scope, request.headers, request.cookies)
        except AccessError as error:
            return self._refusal(request, str(error))
        return self._app

    async def _log_in(self, request: Request) -> Response:
        data = b""
        async for part in request.stream():
            data += part
            if len(data) > MAX_FORM_BYTES:
                raise AccessError("expected a token, got too much")
        (token,) = parse_qs(data.decode("ascii", "replace")).get("token", [""])
        session = await self._guard.log_in(request.scope, token.strip())
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            COOKIE, session, httponly=True, samesite="strict", secure=self._guard.encrypted, path="/"
        )
        return answer

    def _refusal(self, request: Request, reason: str) -> Response:
        if self._guard.asks_for_token and "text/html" in request.headers.get("accept", ""):
            return Response(_LOGIN.format(reason=escape(reason)), 401, media_type="text/html")
        code = 401 if self._guard.asks_for_token else 403
        return Response(reason + "\n", code, media_type="text/plain")
