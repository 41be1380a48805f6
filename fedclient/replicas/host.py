"""Several clients in one process, each in a thread of its own.

A thousand processes of 25 MB each are more than a machine has. A client in a thread has its own name, state
directory and connection all the same; only one of a process trains at a time.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from common import commandline
from common.events import Emit
from common.processes import signals
from fedclient.replicas.identity import Identity
from fedclient.run.live import live


def live_together(group: Sequence[Identity], emit: Emit) -> None:
    """What a process does that was forked for some clients, or for one."""
    if len(group) == 1:
        with commandline.errors_in_one_line(group[0].name):
            live(group[0], emit)
    else:
        host({identity.name: partial(live, identity, emit) for identity in group})


def host(clients: Mapping[str, Callable[[], object]]) -> None:
    """Runs clients, by name, until all have ended; ends with the exit code of the first that failed."""
    guests = [_Guest(name, client) for name, client in clients.items()]
    for guest in guests:
        guest.start()
    try:
        for guest in guests:
            guest.ended.wait()
    except BaseException as stop:  # A signal came, to the main thread as always.
        for guest in guests:
            guest.stop(type(stop))
        for guest in guests:
            guest.ended.wait()
        raise
    raise SystemExit(next((guest.code for guest in guests if guest.code), 0))


class _Guest(threading.Thread):
    """The thread of one client."""

    def __init__(self, name: str, client: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._client = client
        self.code = 1
        """How it ended."""
        self.ended = threading.Event()
        """A thread that is joined counts as ended once a signal interrupts that, in Python 3.11."""

    def run(self) -> None:
        try:
            with suppress(signals.Stopped), commandline.errors_in_one_line(self.name):
                self._client()
                self.code = 0
        except SystemExit as end:
            self.code = end.code if isinstance(end.code, int) else 1
        finally:
            self.ended.set()

    def stop(self, kind: type[BaseException]) -> None:
        """Raises in the thread what a signal raises in the main one; it says good-bye then."""
        if not self.ended.is_set() and self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(kind))
