"""Replicas: clients in processes that are forked from this one, which looks after them until all have ended.

fedclient run --replicas 3 --name site      imports torch, forks, waits; passes SIGTERM and Ctrl-C on
 |-- site-1                                 each a client with a name, a state directory and a
 |-- site-2                                 connection of its own
 `-- site-3
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from common.events import Emit
from common.processes import signals
from common.processes.forks import fork
from common.processes.parent import end_with_parent
from fedclient.replicas.events import ReplicaFailed
from fedclient.replicas.identity import Identity

MAX_PROCESSES = 64
"""More replicas than this share processes."""
_HEARD: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

Group = Sequence[Identity]
"""Clients of one process."""


def grouped(identities: Sequence[Identity]) -> list[Group]:
    """A process for each client or, if they are many, as many as may be, all of about one size."""
    number = min(len(identities), MAX_PROCESSES)
    return [identities[k::number] for k in range(number)]


class Family:
    """The forking process. No other thread may run in it."""

    def __init__(self, groups: Sequence[Group], live: Callable[[Group], object], emit: Emit) -> None:
        """`live` is what a forked process does."""
        self._groups = groups
        self._live = live
        self._emit = emit
        self._running: dict[int, Group] = {}
        self._code = 0

    def run(self) -> int:
        """Until all have ended: 0, or how the first ended that failed; 130 after Ctrl-C."""
        hearing, woken = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(woken, False)
        # A signal that comes while forks are made waits until both sides know what to do with it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        for number in _HEARD:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(woken)
        parent = os.getpid()
        for group in self._groups:
            self._running[fork(self._begin, group, parent, hearing, woken)] = group
            for identity in group:
                identity.state.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        while self._running:
            for number in os.read(hearing, 4096):
                self._hear(signal.Signals(number))
        return self._code

    def _begin(self, group: Group, parent: int, *pipe: int) -> None:
        """What a forked process does first."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Ctrl-C reaches every process of a terminal; the parent passes it on as SIGTERM, once.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for end in pipe:
            os.close(end)
        for others in self._groups:
            for identity in others:
                if others is not group:
                    identity.state.close()
        with signals.stopped_by_signals():
            end_with_parent(signal.SIGTERM, parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
            self._live(group)

    def _hear(self, number: signal.Signals) -> None:
        if number is signal.SIGCHLD:
            self._reap()
            return
        self._code = self._code or signals.exit_code(number)
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            group, code = self._running.pop(pid), os.waitstatus_to_exitcode(status)
            if code:
                self._code = self._code or (code if code > 0 else 128 - code)
                for identity in group:
                    self._emit(ReplicaFailed(client=identity.name, code=code, left=len(self._running)))
