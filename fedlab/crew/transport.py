"""The calls of a client in a worker: messages go through a socket, tensors lie in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from common.tensors.layout import Flat, Purpose
from common.wire.calls import Call
from common.wire.chunks import CHUNK_BYTES
from fedclient.training.task import Task
from fedlab.crew import messages
from fedlab.crew.memory import SharedMemory
from fedlab.crew.messages import Answer, Ask, Message, Opened, Pull, Push
from fedlab.direct.service import Handed

M = TypeVar("M", bound=Message)


class SharedTransport:
    """Calls the service of the simulation's own process, for whichever client has its turn."""

    def __init__(self, fd: int, memory: SharedMemory) -> None:
        self._fd = fd
        self._memory = memory
        self.room = 0
        """The number of the room that the client of this turn has."""
        self.down: Flat | None = None
        """The tensors of the round that was pulled last."""
        self.up: Handed | None = None
        """Those of the update that is pushed next."""

    @property
    def chunk_bytes(self) -> int:
        """As over gRPC."""
        return CHUNK_BYTES

    def _answer(self, message: Message, kind: type[M]) -> M:
        messages.write(self._fd, message)
        answer = messages.read(self._fd)
        assert isinstance(answer, kind), "the two processes are of one tree"
        return answer

    def ask(self, call: Call, request: bytes) -> bytes:
        """The reply."""
        return self._answer(Ask(method=call.method, data=request), Answer).data

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """The header, once there is a round or the end."""
        opened = self._answer(Pull(data=request), Opened)
        header, behind = opened.data[: opened.header_bytes], opened.data[opened.header_bytes :]
        self.down = None
        if opened.has_tensors:
            x = self._memory.broadcasts[opened.slot][: opened.sent]
            self.down = np.concatenate([x, np.frombuffer(behind, np.uint8)]) if behind else x
        return iter([header])

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """The reply to the header, and to what lies in the room."""
        handed, self.up = self.up, None
        header, start, num_bytes = next(frames), 0, 0
        if handed is not None:
            start, num_bytes = self._placed(handed.payload), len(handed.payload)
        push = Push(
            room=self.room, start=start, num_bytes=num_bytes, has_payload=handed is not None, data=header
        )
        return self._answer(push, Answer).data

    def _placed(self, payload: Flat) -> int:
        """Where in the room a payload begins; one that lies elsewhere, being coded, is copied there."""
        room = self._memory.room(self.room)[0]
        start = payload.ctypes.data - room.ctypes.data
        if 0 <= start <= len(room) - len(payload):
            return start
        start = self._memory.values_bytes
        room[start : start + len(payload)] = payload
        return start

    def close(self) -> None:
        """Nothing to hang up."""


class SharedRooms:
    """Lends the room that a turn came with."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self.number = 0
        """Of that room."""

    def lend(self, task: Task) -> Flat:
        """Room for y_i, the buffers and c_i+ that opens with x."""
        room = self._memory.room(self.number)[0]
        end = task.layout.part(Purpose.MODEL, Purpose.BUFFER).num_bytes
        room[:end] = task.broadcast[:end]
        return room

    def may_keep(self) -> bool:
        """The room is the same whatever becomes of it: the other process decides."""
        return True

    def give_back(self) -> None:
        """It never is given back."""
