"""The simulation with every message encoded, sent in chunks, checked, spooled and decoded, as over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.events import Emit, unheard
from common.wire.calls import Call
from common.wire.chunks import CHUNK_BYTES
from fedclient.rpc.connection import Connection
from fedlab import simulation
from fedlab.direct.loop import Loop
from fedlab.direct.rooms import Rooms
from fedlab.direct.worker_here import WorkerHere
from fedserver.access.authenticate import Caller
from fedserver.config import RunConfig
from fedserver.federation import Federation, assemble
from fedserver.rpc.service import Service
from fedserver.store.run_dir import RunDir

_CALLER = Caller("")


class WireTransport:
    """Calls the service with frames."""

    def __init__(self, loop: Loop, service: Service) -> None:
        self._loop = loop
        self._service = service

    @property
    def chunk_bytes(self) -> int:
        """As over gRPC."""
        return CHUNK_BYTES

    def ask(self, call: Call, request: bytes) -> bytes:
        """The reply."""
        reply: bytes = self._loop.call(getattr(self._service, call.method)(request, _CALLER))
        return reply

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """All replies."""

        async def received() -> list[bytes]:
            return [frame async for frame in getattr(self._service, call.method)(request, _CALLER)]

        return iter(self._loop.call(received()))

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """The reply to all frames."""

        async def sent() -> AsyncIterator[bytes]:
            for frame in frames:
                yield frame

        reply: bytes = self._loop.call(getattr(self._service, call.method)(sent(), _CALLER))
        return reply

    def close(self) -> None:
        """Nothing to hang up."""


async def _assembled(
    config: RunConfig, run_id: str, run_dir: RunDir, worker: WorkerHere, emit: Emit
) -> Federation:
    return assemble(config, run_id, run_dir, worker, emit)


def _connected(federation: Federation, loop: Loop, rooms: Rooms, num_clients: int) -> list[Connection]:
    names = (f"client-{i}" for i in range(num_clients))
    return [Connection(WireTransport(loop, federation.service), name) for name in names]


def simulate_on_the_wire(config: RunConfig, run_path: Path) -> None:
    """Runs the federation of a simulation, and leaves a run directory behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_assembled", _assembled)
        patch.setattr(simulation, "_connected", _connected)
        simulation.simulate(config, run_path, unheard)
