"""Admission: callers are identified before anything of a call is read, and unread first messages are bounded.

gRPC takes in the first message of a call before anybody has looked at the call, and it may stop halfway.
Here the caller comes first, and only so many first messages may be on their way at once: an honest one is
small and arrives with its call, so whoever has been at it for longest gives way. Further messages are the
service's business.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from common.errors import UnavailableError

Context = grpc.aio.ServicerContext[Any, Any]
MAX_OPENINGS = 64
"""First messages that may be on their way at once."""
OPENING_S = 20.0
"""How long one may take."""


class FirstMessages:
    """Bounds the first messages that are on their way, in number and in time."""

    def __init__(self, limit: int = MAX_OPENINGS, seconds: float = OPENING_S) -> None:
        self._limit = limit
        self._seconds = seconds
        self._coming: OrderedDict[asyncio.Timeout, None] = OrderedDict()
        """The time that each of them has, the oldest first."""

    async def first(self, messages: AsyncIterator[Any]) -> Any:
        """The first message of a stream; raises if it has to give way. None if the stream is empty."""
        own: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(self._seconds) as own:
                self._coming[own] = None
                if len(self._coming) > self._limit:
                    oldest = self._coming.popitem(last=False)[0]
                    oldest.reschedule(asyncio.get_running_loop().time())
                return await anext(messages, None)
        except TimeoutError:
            if own not in self._coming:
                raise UnavailableError("too many calls at once; try again") from None
            raise UnavailableError(f"the call's message has not come for {self._seconds:.0f} s") from None
        finally:
            if own is not None:
                self._coming.pop(own, None)


class Admission(grpc.aio.ServerInterceptor):
    """Stands before every method of the server, health and reflection included."""

    def __init__(self, admit: Callable[[str, Context], Awaitable[None]]) -> None:
        """`admit` gets the method's name and ends the call if the caller is not to be heard at all."""
        self._admit = admit
        self._first_messages = FirstMessages()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The same method, as one that reads its own messages; on the wire there is no difference."""
        inner: Any = await continuation(handler_call_details)
        if inner is None:
            return None
        method = handler_call_details.method
        behaviour = inner.unary_unary or inner.stream_unary or inner.unary_stream or inner.stream_stream

        async def opened(messages: AsyncIterator[Any], context: Context) -> Any:
            await self._admit(method, context)
            try:
                first = await self._first_messages.first(messages)
            except UnavailableError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            if first is None and not inner.request_streaming:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a message, got none")
            return _again(first, messages) if inner.request_streaming else first

        async def replying(messages: AsyncIterator[Any], context: Context) -> Any:
            return await behaviour(await opened(messages, context), context)

        async def streaming(messages: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            replies = behaviour(await opened(messages, context), context)
            if not hasattr(replies, "__aiter__"):
                await replies  # A handler that writes by itself.
                return
            async for reply in replies:
                yield reply

        codec = (inner.request_deserializer, inner.response_serializer)
        if inner.response_streaming:
            return grpc.stream_stream_rpc_method_handler(streaming, *codec)
        return grpc.stream_unary_rpc_method_handler(replying, *codec)


async def _again(first: Any, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """A stream whose first message has been taken out of it."""
    if first is not None:
        yield first
        async for message in messages:
            yield message
