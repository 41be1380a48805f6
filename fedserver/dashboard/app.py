"""The pages, the stream of changes, and what can be asked for besides."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from fedserver.dashboard.access import AccessMiddleware, Guard
from fedserver.dashboard.hub import Hub
from fedserver.metrics.family import CONTENT_TYPE
from fedserver.metrics.text import metrics_text

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
Answer = Callable[[Request], Awaitable[Response]]


def application(run_dirs: Sequence[Path], guard: Guard) -> tuple[Starlette, Hub]:
    """The dashboard of some run directories, for whoever the guard lets in."""
    hub = Hub(run_dirs)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(hub.run())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    access = Middleware(AccessMiddleware, guard=guard)
    return Starlette(routes=routes(hub), middleware=[access], lifespan=lifespan), hub


def routes(hub: Hub) -> list[BaseRoute]:
    """Everything that can be asked for; all of it only reads."""

    async def news(request: Request) -> Response:
        return StreamingResponse(hub.news(), media_type="text/event-stream")

    async def runs(request: Request) -> Response:
        return Response(f"[{','.join(await hub.whole())}]", media_type="application/json")

    async def metrics(request: Request) -> Response:
        return Response(await hub.shown(metrics_text), media_type=CONTENT_TYPE)

    answers: dict[str, Answer] = {"/news": news, "/runs.json": runs, "/metrics": metrics, **_files()}
    return [Route(path, answer, methods=["GET"]) for path, answer in answers.items()]


def _files() -> dict[str, Answer]:
    """The files of the page, read once, by their paths."""
    folder = resources.files("fedserver.dashboard") / "static"
    found = {"/": _file((folder / "index.html").read_bytes(), ".html")}
    for place in (folder, folder / "vendor"):
        for entry in place.iterdir():
            suffix = Path(entry.name).suffix
            if suffix in TYPES and suffix != ".html":
                at = "/static/vendor/" if place is not folder else "/static/"
                found[at + entry.name] = _file(entry.read_bytes(), suffix)
    return found


def _file(data: bytes, suffix: str) -> Answer:
    tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=TYPES[suffix], headers=headers)

    return answer
