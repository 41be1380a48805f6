"""The simulation's side of its workers: starts them, gives out turns and answers what their clients ask.

A worker that is killed takes nothing along that is not elsewhere: its clients' turns go to the others, from
what the last counted round left. No other worker is started in its place, because a fork copies one thread
only, and there are several by then.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from typing import Any

from common.errors import RunError
from common.events import Emit
from common.processes.forks import share_memory
from fedlab.crew import messages
from fedlab.crew.hands import Hands
from fedlab.crew.memory import SharedMemory
from fedlab.crew.messages import Answer, Ask, Done, Failed, Message, Opened, Pull, Push, Turn, packed
from fedlab.crew.worker import become_worker
from fedlab.direct.carried import Carried
from fedlab.direct.clients import Clients
from fedlab.direct.loop import Loop
from fedlab.direct.service import Handed, HandedService
from fedlab.direct.transport import CALLER
from fedlab.events import WorkerLost
from fedserver.run.board import Board


class Crew:
    """Workers that wait for turns. They end with the block, and with this process however it ends."""

    def __init__(self, jobs: int, clients: Clients, memory: SharedMemory) -> None:
        """Forks; so this process should have no threads yet but those of whoever asks for a simulation."""
        self._memory = memory
        self._sockets: dict[int, socket.socket] = {}
        """Of the workers that are alive, by their number."""
        self._pids: dict[int, int] = {}
        share_memory()
        for flushed in (sys.stdout, sys.stderr):
            flushed.flush()
        for k in range(jobs):
            ours, theirs = socket.socketpair()
            parent, pid = os.getpid(), _forked()
            if pid == 0:
                clients.process = k
                become_worker(theirs.detach(), clients, memory, parent)
            theirs.close()
            self._sockets[k], self._pids[k] = ours, pid

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends them at once: what they have to leave behind is in files, each of which is whole."""
        sockets, self._sockets = self._sockets, {}
        for pid in self._pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for each in sockets.values():
            each.close()

    @property
    def alive(self) -> list[int]:
        """The numbers of the workers that are there."""
        return [*self._sockets]

    def exchange(self, k: int) -> socket.socket:
        """The way to a worker; raises EOFError if it is gone."""
        found = self._sockets.get(k)
        if found is None:
            raise EOFError("the worker has ended")
        return found

    def lose(self, k: int) -> str:
        """Worker k is gone; says how."""
        gone = self._sockets.pop(k, None)
        if gone is None:
            return "ended"
        gone.close()
        with suppress(ProcessLookupError):
            os.kill(self._pids[k], signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pids.pop(k), 0)[1])
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _forked() -> int:
    """A fork. From a notebook there are other threads, which the worker has no use for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class CrewTurns:
    """Has the turns of a round taken by a crew."""

    def __init__(
        self,
        crew: Crew,
        memory: SharedMemory,
        hands: Hands,
        service: HandedService,
        board: Board,
        loop: Loop,
        emit: Emit,
    ) -> None:
        self._crew = crew
        self._memory = memory
        self._hands = hands
        self._service = service
        self._board = board
        self._loop = loop
        self._emit = emit
        self._threads = ThreadPoolExecutor(len(crew.alive), thread_name_prefix="crew")
        self._lock = threading.Lock()
        self._shown = 0
        """The round whose x lies in shared memory."""
        self._met: set[tuple[int, int]] = set()
        """Workers and clients whose seats they know."""
        self._rooms: dict[int, int] = {}
        """Of the clients of this round."""
        self._pulled: dict[int, int] = {}
        """By client, the round that it has got in its turn."""
        self._pushed: set[int] = set()
        """Clients whose update for it was taken or turned down."""

    def take(self, drawn: list[int], carried: dict[int, Carried], running: Future[None]) -> None:
        """The turns of these clients; raises what ends the run before they are all taken."""
        self._hands.open(drawn)
        self._rooms = {i: number for number, i in enumerate(drawn)}
        while self._hands.left:
            if not self._crew.alive:
                raise RunError(
                    "all workers were killed, perhaps because memory is short; the same command, with fewer "
                    "--jobs, goes on after the last closed round"
                )
            working: set[Future[Any]] = {
                self._threads.submit(self._work, k, carried) for k in self._crew.alive
            }
            left = len(working)
            for ended in as_completed([*working, running]):
                ended.result()
                left -= ended in working
                if not left:
                    break

    def close(self) -> None:
        """There are no further rounds; who still waits for an answer ends with the loop."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, k: int, carried: dict[int, Carried]) -> None:
        """Has worker k take turns as long as there are any for it."""
        while (i := self._hands.next(k)) is not None:
            try:
                carried[i] = self._turn(k, i, carried.get(i, Carried()))
            except (EOFError, OSError) as error:
                if not isinstance(error, EOFError | ConnectionError):
                    raise
                self._lost(k, i, carried)
                return

    def _lost(self, k: int, i: int, carried: dict[int, Carried]) -> None:
        """Worker k is gone in the turn of client i."""
        self._emit(WorkerLost(worker=k, reason=self._crew.lose(k), left=len(self._crew.alive)))
        for each in self._hands.lose(k):
            # The x of the last round was in its memory, so its round is not named to the server.
            carried[each] = replace(carried.get(each, Carried()), last_round=0, taken=False)
        # The server may have closed the round of this turn by now, or not yet the one before.
        r, current = self._pulled.get(i), self._board.round
        if r is None or (current is not None and current.number == r and self._board.waits_for(i)):
            self._hands.again(i)
        elif i in self._pushed:
            carried[i] = replace(carried[i], held=(*carried[i].held, r), has_frozen=True)

    def _turn(self, k: int, i: int, before: Carried) -> Carried:
        self._pulled.pop(i, None)
        self._pushed.discard(i)
        fd = self._crew.exchange(k).fileno()
        seat = b"" if (k, i) in self._met else self._service.seat(i)
        messages.write(fd, Turn(client=i, room=self._room(k, i), data=seat, **packed(before)))  # type: ignore[arg-type]
        self._met.add((k, i))
        while True:
            said = messages.read(fd)
            if isinstance(said, Done):
                return messages.carried_in(said)
            if isinstance(said, Failed):
                raise said.as_raised()
            messages.write(fd, self._answered(i, said))

    def _room(self, k: int, i: int) -> int:
        """One of its own for every client, as long as there are any, and then that of the worker."""
        rooms = len(self._memory.rooms)
        return self._rooms[i] if self._rooms[i] < rooms else rooms + k

    def _answered(self, i: int, said: Message) -> Message:
        if isinstance(said, Pull):
            return self._opened(i, said.data)
        if isinstance(said, Push):
            room, stays = self._memory.room(said.room)
            payload = room[said.start : said.start + said.num_bytes]
            handed = Handed(payload, room if stays else None) if said.has_payload else None
            reply = self._loop.ask(self._service.take_update(said.data, handed, CALLER))
            if said.has_payload:
                self._pushed.add(i)
            return Answer(data=reply)
        assert isinstance(said, Ask), "a worker says nothing else"
        return Answer(data=self._loop.ask(getattr(self._service, said.method)(said.data, CALLER)))

    def _opened(self, i: int, request: bytes) -> Opened:
        header, handed = self._loop.ask(self._service.hand_round(request, CALLER))
        if handed is None:
            return Opened(header_bytes=len(header), slot=0, sent=0, has_tensors=False, data=header)
        self._pulled[i] = handed.round
        slot = handed.round % len(self._memory.broadcasts)
        with self._lock:
            if self._shown != handed.round:
                self._memory.broadcasts[slot][: len(handed.raw)] = handed.raw
                self._shown = handed.round
        return Opened(
            header_bytes=len(header),
            slot=slot,
            sent=handed.sent,
            has_tensors=True,
            data=header + handed.behind.tobytes(),
        )
