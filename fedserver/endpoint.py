"""The service on a gRPC server: handlers, and errors as status codes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from common.errors import (
    FedError,
    JoinError,
    SupersededError,
    UnavailableError,
    UnknownClientError,
    WireError,
    WrongRunError,
)
from fedpvr.v1 import federation_pb2 as pb
from fedserver.service import Service

SERVICE = pb.DESCRIPTOR.services_by_name["Federation"].full_name

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
    """All calls of the service. PullRound yields encoded frames: a broadcast is encoded only once."""

    async def pull_round(request: pb.PullRoundRequest, context: Context) -> AsyncIterator[bytes]:
        try:
            async for frame in service.pull_round(request):
                yield frame
        except (FedError, OSError) as error:
            await _abort(context, error)

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Join": grpc.unary_unary_rpc_method_handler(
            _replying(service.join), pb.JoinRequest.FromString, pb.JoinReply.SerializeToString
        ),
        "PullRound": grpc.unary_stream_rpc_method_handler(pull_round, pb.PullRoundRequest.FromString, bytes),
        "PushUpdate": grpc.stream_unary_rpc_method_handler(
            _replying(service.push_update), pb.UpdateFrame.FromString, pb.PushUpdateReply.SerializeToString
        ),
        "Status": grpc.unary_unary_rpc_method_handler(
            _replying(service.status), pb.StatusRequest.FromString, pb.StatusReply.SerializeToString
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _replying(method: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def handle(request: Any, context: Context) -> Any:
        try:
            return await method(request)
        except (FedError, OSError) as error:
            await _abort(context, error)

    return handle


async def _abort(context: Context, error: FedError | OSError) -> None:
    """A full or broken disk is an OSError and ends as INTERNAL: the client may try again."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error))
