"""The service on a gRPC server: handlers made from the table of calls, and errors as status codes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import grpc

from common.errors import AccessError, CertificateError, FedError, StateError
from common.wire.calls import CALLS, SERVICE, Call
from common.wire.statuses import status_of
from fedserver.access.authenticate import Authenticator, Caller, Penance, Refusals
from fedserver.rpc.service import Service

MAX_DETAILS = 1000
"""Characters of an error that go to a peer; its own words may be in it, and metadata has a limit."""
HEALTH = "/grpc.health.v1.Health/"
MAX_WATCHERS = 64
"""Calls of strangers that may stay open, since anyone may watch the health: each holds a connection."""
Context = grpc.aio.ServicerContext[Any, Any]

_HANDLERS: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
}
"""By whether requests and replies are streams."""
_caller: ContextVar[Caller] = ContextVar("caller")
"""Who makes the call at hand. gRPC runs every call as a task of its own, so each has its own value."""


class Endpoint:
    """All calls of the service, on encoded messages: the service counts and decodes them itself."""

    def __init__(self, service: Service, authenticator: Authenticator, refusals: Refusals) -> None:
        self._service = service
        self._authenticator = authenticator
        self._refusals = refusals
        self._penance = Penance()
        self._watchers = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """For a gRPC server."""
        methods = {call.name: self._handler(call) for call in CALLS.values()}
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def admit(self, method: str, context: Context) -> None:
        """Notes who makes a call, or ends it before any of it is read. Anyone may ask for health."""
        if method.startswith(HEALTH):
            await self._admit_watcher(method, context)
            return
        try:
            _caller.set(self._identified(context))
        except FedError as error:
            await self._penance.serve(context.peer())
            await self._abort(context, error)

    async def _admit_watcher(self, method: str, context: Context) -> None:
        if method != f"{HEALTH}Watch":
            return
        if self._watchers >= MAX_WATCHERS:
            text = f"{MAX_WATCHERS} others watch already; ask with Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._watchers += 1
        context.add_done_callback(self._watcher_left)  # type: ignore[arg-type]

    def _watcher_left(self, _: object) -> None:
        self._watchers -= 1

    def _identified(self, context: Context) -> Caller:
        certificates: Any = context.auth_context().get("x509_pem_cert", (None,))
        said: Any = dict(context.invocation_metadata() or ()).get("authorization", "")
        return self._authenticator.admit(
            context.peer(), certificates[0], said if isinstance(said, str) else ""
        )

    def _handler(self, call: Call) -> grpc.RpcMethodHandler[Any, Any]:
        method = getattr(self._service, call.method)
        behaviour = self._streaming(method) if call.streams_replies else self._replying(method)
        return _HANDLERS[call.streams_requests, call.streams_replies](behaviour)

    def _streaming(
        self, method: Callable[[bytes, Caller], AsyncGenerator[bytes, None]]
    ) -> Callable[[bytes, Context], Awaitable[None]]:
        async def handle(request: bytes, context: Context) -> None:
            try:
                # Written from here: a generator around a generator would cost as much as gRPC does.
                async with aclosing(method(request, _caller.get())) as frames:
                    async for frame in frames:
                        await context.write(frame)
            except (FedError, OSError) as error:
                await self._abort(context, error)

        return handle

    def _replying(
        self, method: Callable[[Any, Caller], Awaitable[bytes]]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def handle(request: Any, context: Context) -> Any:
            try:
                return await method(request, _caller.get())
            except (FedError, OSError) as error:
                await self._abort(context, error)

        return handle

    async def _abort(self, context: Context, error: FedError | OSError) -> None:
        """What a full or broken disk does ends as INTERNAL, and is told: the client may try again."""
        if isinstance(error, AccessError | CertificateError):
            self._refusals.note(str(error))
        if isinstance(error, AccessError):
            self._service.refuse(error.credential, str(error))
        if isinstance(error, OSError | StateError):
            self._refusals.note(f"a call, because of this server's disk: {error}")
        await context.abort(grpc.StatusCode[status_of(error)], str(error)[:MAX_DETAILS])
