"""A client's conversation with a server in its own process."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from common.tensors.layout import NOTHING, Flat, Layout
from common.wire.chunks import START, Position
from common.wire.encoding import Encoding
from fedclient.rpc.connection import Connection
from fedclient.rpc.download import Download
from fedclient.rpc.replies import PushReply
from fedclient.rpc.round_stream import ReceivedRound, RunEnded, UpdateLost
from fedclient.rpc.seat import Seat, seat_of
from fedclient.store.stored_update import Sender, StoredUpdate
from fedclient.training.task import Task
from fedclient.transport.base import Transport
from fedlab.direct.service import Handed
from fedpvr.v1 import federation_pb2 as pb


class HandingTransport(Transport, Protocol):
    """Calls whose tensors are in memory."""

    down: Flat | None
    """Those of the round that was pulled last."""
    up: Handed | None
    """Those of the update that is pushed next."""


class LendsRooms(Protocol):
    """Has memory for updates; see `Rooms`."""

    def lend(self, task: Task) -> Flat:
        """Room for an update, that opens with x."""

    def may_keep(self) -> bool:
        """Whether what was lent last may stay with the server."""

    def give_back(self) -> None:
        """Takes back what was lent last."""


class HandedConnection(Connection):
    """Gets x and hands in y_i as they lie in memory."""

    def __init__(self, transport: HandingTransport, name: str, rooms: LendsRooms) -> None:
        super().__init__(transport, name)
        self._handed = transport
        self._rooms = rooms
        self._room: Flat | None = None

    def pull(
        self,
        run_id: str,
        after: int,
        held_rounds: list[int],
        model: Layout,
        download: Download,
        frozen: Layout = NOTHING,
    ) -> ReceivedRound | RunEnded | UpdateLost:
        """Waits for the next round; its tensors are the server's own, and y_i gets room in `Rooms`."""
        here = _Here(self._handed)
        received = super().pull(run_id, after, held_rounds, model, here, frozen)
        if isinstance(received, ReceivedRound):
            self._room = self._rooms.lend(received.task)
            return replace(received, task=replace(received.task, room=self._room))
        return received

    def push(self, sender: Sender, stored_update: StoredUpdate, start: Position = START) -> PushReply:
        """Hands the memory over in which the update lies, or has it copied where there is too much of it."""
        keeps = self._rooms.may_keep()
        self._handed.up = Handed(stored_update.payload, self._room if keeps else None)
        try:
            return super().push(sender, _Unnamed(**vars(stored_update)), START)
        finally:
            self._room = None
            if not keeps:
                self._rooms.give_back()


class _Here(Download):
    """A download of which all is here."""

    def __init__(self, transport: HandingTransport) -> None:
        super().__init__()
        self._transport = transport

    def begin(self, header: pb.RoundHeader, encoding: Encoding) -> None:
        """There is nothing to wait for."""

    def finish(self) -> Flat:
        """The bytes of all tensors."""
        here, self._transport.down = self._transport.down, None
        assert here is not None, "tensors follow a header"
        return here


class _Unnamed(StoredUpdate):
    """An update that no other can be mistaken for: it needs no checksum, only a name of the same length."""

    @property
    def id(self) -> str:
        """As long as any other's."""
        return f"{self.round}-{0:08x}"


def seat_in(data: bytes) -> Seat:
    """The seat that `HandedService.seat` told of."""
    return seat_of(pb.JoinReply.FromString(data))
