"""The service on a gRPC server: handlers, and errors as status codes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from common.dialogue import SERVICE
from common.errors import (
    FedError,
    JoinError,
    SupersededError,
    UnavailableError,
    UnknownClientError,
    WireError,
    WrongRunError,
)
from fedserver.service import Service

Context = grpc.aio.ServicerContext[Any, Any]

_CODES: list[tuple[type[FedError], grpc.StatusCode]] = [
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (SupersededError, grpc.StatusCode.ABORTED),
    (JoinError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnknownClientError, grpc.StatusCode.NOT_FOUND),
    (WrongRunError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
]


def handler(service: Service) -> grpc.GenericRpcHandler:
    """All calls of the service, on encoded messages: the service counts and decodes them itself."""

    async def pull_round(request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            async for frame in service.pull_round(request, context.peer()):
                yield frame
        except (FedError, OSError) as error:
            await _abort(context, error)

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Join": grpc.unary_unary_rpc_method_handler(_replying(service.join)),
        "PullRound": grpc.unary_stream_rpc_method_handler(pull_round),
        "PushUpdate": grpc.stream_unary_rpc_method_handler(_replying(service.push_update)),
        "UpdateProgress": grpc.unary_unary_rpc_method_handler(_replying(service.update_progress)),
        "Renew": grpc.unary_unary_rpc_method_handler(_replying(service.renew)),
        "Status": grpc.unary_unary_rpc_method_handler(_replying(service.status)),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _replying(method: Callable[[Any, str], Awaitable[bytes]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def handle(request: Any, context: Context) -> Any:
        try:
            return await method(request, context.peer())
        except (FedError, OSError) as error:
            await _abort(context, error)

    return handle


async def _abort(context: Context, error: FedError | OSError) -> None:
    """A full or broken disk is an OSError and ends as INTERNAL: the client may try again."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error))
