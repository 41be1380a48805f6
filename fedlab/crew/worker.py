"""The program of a worker: takes the turns that it is given, until nobody gives it any."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn

import torch

from common.errors import FedError
from common.processes.parent import end_with_parent
from fedclient.rpc.seat import Seat
from fedlab.crew import messages
from fedlab.crew.memory import SharedMemory
from fedlab.crew.messages import Done, Failed, Turn, packed
from fedlab.crew.transport import SharedRooms, SharedTransport
from fedlab.direct.clients import Clients
from fedlab.direct.connection import HandedConnection, seat_in
from fedlab.processes.nursery import close_all_but


class Worker:
    """Has some clients of a simulation, and memory that it shares with the others."""

    def __init__(self, fd: int, clients: Clients, memory: SharedMemory) -> None:
        self._fd = fd
        self._clients = clients
        self._transport = SharedTransport(fd, memory)
        self._rooms = SharedRooms(memory)
        self._seats: dict[int, Seat] = {}

    def serve(self) -> None:
        """Takes turns until the other side hangs up."""
        while True:
            turn = messages.read(self._fd)
            assert isinstance(turn, Turn), "nothing else comes between turns"
            try:
                answer: Done | Failed = self._take(turn)
            except FedError as error:
                answer = Failed(error=type(error).__name__, text=str(error))
            except MemoryError:
                answer = Failed(error="RunError", text="memory is short; lower --jobs or --batch-size")
            messages.write(self._fd, answer)

    def _take(self, turn: Turn) -> Done:
        if turn.data:
            self._seats[turn.client] = seat_in(turn.data)
        self._transport.room = self._rooms.number = turn.room
        connection = HandedConnection(self._transport, f"client-{turn.client}", self._rooms)
        return Done(**packed(self._clients.take_turn(connection, self._seats[turn.client], turn.carried)))  # type: ignore[arg-type]


def become_worker(fd: int, clients: Clients, memory: SharedMemory, parent: int) -> NoReturn:
    """Makes a worker of a process that was just forked. Ctrl-C is for its parent, with which it ends."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent(signal.SIGKILL, parent)
        close_all_but(fd)
        torch.set_num_threads(1)
        with suppress(EOFError, OSError):
            Worker(fd, clients, memory).serve()
        code = 0
    finally:
        os._exit(code)
