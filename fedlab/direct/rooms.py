"""Memory for the updates of a round, used again in the next: fresh pages cost more than what fills them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from common.tensors.layout import Flat, Layout, Purpose, TensorSpec
from fedclient.training.task import Task

KEPT_BYTES = 1 << 30
"""What the updates of a round may take; those of further clients go to files, as a server's do."""


class Rooms:
    """Lends memory that opens with x to one client after the other, and has the next ready meanwhile.

    All that was lent is free when the next round opens: its updates are in x then.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._left = 0
        self._free: list[Flat] = []
        self._lent: list[Flat] = []
        self._next: Future[Flat] | None = None
        self._filler = ThreadPoolExecutor(1, thread_name_prefix="rooms")

    def open(self, num_clients: int) -> None:
        """A round for so many clients begins."""
        if self._next is not None:  # Of the round before, and nobody has come for it.
            self._lent.append(self._next.result())
            self._next = None
        self._free += self._lent
        self._lent = []
        self._left = num_clients

    def lend(self, task: Task) -> Flat:
        """Room for y_i, the buffers and c_i+ and, where they are coded, for their bytes behind them."""
        room = self._filled(task) if self._next is None else self._next.result()
        self._lent.append(room)
        self._left -= 1
        self._next = self._filler.submit(self._filled, task) if self._left > 0 else None
        return room

    def _filled(self, task: Task) -> Flat:
        coded = 0 if task.encoding.plain else task.encoding.encoded.num_bytes
        wanted = task.layout.num_bytes + coded
        while self._free and len(self._free[-1]) < wanted:  # S_svr has grown.
            self._free.pop()
        room = self._free.pop() if self._free else _memory(wanted)
        end = task.layout.part(Purpose.MODEL, Purpose.BUFFER).num_bytes
        room[:end] = task.broadcast[:end]
        return room

    def may_keep(self) -> bool:
        """Whether what was lent last may stay with the server until the round is over."""
        return sum(map(len, self._lent)) <= self._kept_bytes

    def give_back(self) -> None:
        """Takes back what was lent last."""
        self._free.append(self._lent.pop())

    def clear(self) -> None:
        """Forgets all memory: the next round needs more of it."""
        if self._next is not None:
            self._next.result()
        self._next, self._free, self._lent = None, [], []

    def close(self) -> None:
        """There are no further rounds."""
        self._filler.shutdown()


def _memory(num_bytes: int) -> Flat:
    return Layout([TensorSpec("room", "uint8", (num_bytes,))]).allocate()
