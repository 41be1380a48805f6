"""The service on a gRPC server: who calls, handlers, and errors as status codes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from common.errors import (
    AccessError,
    CertificateError,
    FedError,
    JoinError,
    SupersededError,
    UnavailableError,
    UnknownClientError,
    WireError,
    WrongRunError,
)
from common.wire.messages import SERVICE
from fedserver.access.authenticate import Authenticator, Caller, Refusals
from fedserver.rpc.service import Service

MAX_DETAILS = 1000
"""Characters of an error that go to a peer; its own words may be in it, and metadata has a limit."""
HEALTH = "/grpc.health.v1.Health/"
Context = grpc.aio.ServicerContext[Any, Any]

_CODES: list[tuple[type[FedError], grpc.StatusCode]] = [
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (AccessError, grpc.StatusCode.UNAUTHENTICATED),
    (CertificateError, grpc.StatusCode.UNAUTHENTICATED),
    (SupersededError, grpc.StatusCode.ABORTED),
    (JoinError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnknownClientError, grpc.StatusCode.NOT_FOUND),
    (WrongRunError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
]


class Endpoint:
    """All calls of the service, on encoded messages: the service counts and decodes them itself."""

    def __init__(self, service: Service, authenticator: Authenticator, refusals: Refusals) -> None:
        self._service = service
        self._authenticator = authenticator
        self._refusals = refusals

    def handler(self) -> grpc.GenericRpcHandler:
        """For a gRPC server."""
        service = self._service
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Join": grpc.unary_unary_rpc_method_handler(self._replying(service.join)),
            "PullRound": grpc.unary_stream_rpc_method_handler(self._pull_round),
            "PushUpdate": grpc.stream_unary_rpc_method_handler(self._replying(service.push_update)),
            "UpdateProgress": grpc.unary_unary_rpc_method_handler(self._replying(service.update_progress)),
            "Renew": grpc.unary_unary_rpc_method_handler(self._replying(service.renew)),
            "Status": grpc.unary_unary_rpc_method_handler(self._replying(service.status)),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def admit(self, method: str, context: Context) -> None:
        """Ends a call of somebody who is not let in, before any of it is read. Anyone may ask for health."""
        if method.startswith(HEALTH):
            return
        try:
            self._caller(context)
        except FedError as error:
            await self._abort(context, error)

    async def _pull_round(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            async for frame in self._service.pull_round(request, self._caller(context)):
                yield frame
        except (FedError, OSError) as error:
            await self._abort(context, error)

    def _replying(
        self, method: Callable[[Any, Caller], Awaitable[bytes]]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def handle(request: Any, context: Context) -> Any:
            try:
                return await method(request, self._caller(context))
            except (FedError, OSError) as error:
                await self._abort(context, error)

        return handle

    def _caller(self, context: Context) -> Caller:
        credentials: Any = context.auth_context().get("x509_pem_cert", (None,))
        said: Any = dict(context.invocation_metadata() or ()).get("authorization", "")
        return self._authenticator.admit(
            context.peer(), credentials[0], said if isinstance(said, str) else ""
        )

    async def _abort(self, context: Context, error: FedError | OSError) -> None:
        """A full or broken disk is an OSError and ends as INTERNAL: the client may try again."""
        if isinstance(error, AccessError | CertificateError):
            self._refusals.note(str(error))
        if isinstance(error, AccessError):
            self._service.refuse(error.credential, str(error))
        if isinstance(error, OSError):
            self._refusals.note(f"a call, because of this server's disk: {error}")
        code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
        await context.abort(code, str(error)[:MAX_DETAILS])
