"""The calls of a client in the process of its server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.tensors.layout import Flat
from common.wire.calls import Call
from common.wire.chunks import CHUNK_BYTES
from fedlab.direct.loop import Loop
from fedlab.direct.service import Handed, HandedService
from fedserver.access.authenticate import Caller

CALLER = Caller("")


@dataclass
class HandedTransport:
    """Calls the service directly. Streams have their header only; what would follow is in `down` and `up`."""

    loop: Loop
    service: HandedService
    down: Flat | None = None
    """The tensors of the round that was pulled last."""
    up: Handed | None = None
    """Those of the update that is pushed next."""

    @property
    def chunk_bytes(self) -> int:
        """As over gRPC."""
        return CHUNK_BYTES

    def ask(self, call: Call, request: bytes) -> bytes:
        """The reply, once the server's loop has it."""
        reply: bytes = self.loop.ask(getattr(self.service, call.method)(request, CALLER))
        return reply

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """The header, once there is a round or the end."""
        assert call.name == "PullRound", "no other stream is handed over in memory"
        header, handed = self.loop.ask(self.service.hand_round(request, CALLER))
        self.down = None if handed is None else handed.flat(handed.raw)
        return iter([header])

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """The reply to the header, which is all that is taken of the frames, and to what is handed over."""
        assert call.name == "PushUpdate", "no other stream is handed over in memory"
        handed, self.up = self.up, None
        return self.loop.ask(self.service.take_update(next(frames), handed, CALLER))

    def close(self) -> None:
        """Nothing to hang up."""
