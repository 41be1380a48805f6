"""The standard gRPC health service, for probes and for whoever waits until clients can be started."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from common.wire.calls import SERVICE

NAME: str = health.SERVICE_NAME
FAREWELL_S = 1.0
"""How long watchers get to hear of the end; one that reads nothing must not hold it up."""
_Status = health_pb2.HealthCheckResponse


class Health:
    """The empty name is SERVING as long as the process answers, the service's name while clients can join."""

    def __init__(self, joinable: asyncio.Event) -> None:
        """`joinable` is set once a client that joins will get a seat."""
        self._servicer = health.aio.HealthServicer()
        self._following = asyncio.create_task(self._follow(joinable))

    async def _follow(self, joinable: asyncio.Event) -> None:
        await self._servicer.set(SERVICE, _Status.NOT_SERVING)
        await joinable.wait()
        await self._servicer.set(SERVICE, _Status.SERVING)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Lets a server answer for it."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def stop(self) -> None:
        """Under no name anything is served any more."""
        self._following.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._servicer.enter_graceful_shutdown()
