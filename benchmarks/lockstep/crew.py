"""Client processes that do one thing at a time, all at the same moment: pull, or push.

One process forks all of them after its imports; each has a socket on which it is told to go and says when it
is done and what processor time that took.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlab.processes import children
from measure import processes
from measure.machine import TREE

LIMIT_S = 120.0
HERE = Path(__file__).parent
PATHS = (TREE, TREE / "proto", HERE.parent)


@dataclass(frozen=True)
class Phase:
    """What all of them took for one thing."""

    wall_s: float
    """From the word to the last one's answer."""
    cpu_s: float
    """All of them together."""
    ended: float
    """time.perf_counter()."""


class Crew:
    """The commanding side."""

    def __init__(self, script: str, arguments: Sequence[str], size: int, folder: Path) -> None:
        """`script` is a file of this folder that calls `serve`; the members run in `folder`."""
        pairs = [socket.socketpair() for _ in range(size)]
        self._sockets = [ours for ours, _ in pairs]
        numbers = [theirs.fileno() for _, theirs in pairs]
        command = [sys.executable, str(HERE / script), ",".join(map(str, numbers)), *arguments]
        self._log = folder / f"{script}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=processes.environment(PATHS),
            )
        for _, theirs in pairs:
            theirs.close()
        for ours in self._sockets:
            ours.settimeout(LIMIT_S)
        self._answers = [ours.makefile("r") for ours in self._sockets]

    def wait(self, word: str) -> None:
        """Until all of them are about to do something."""
        for answer in self._answers:
            self._expect(answer.readline().strip(), word)

    def go(self, word: str) -> Phase:
        """Lets all of them do it."""
        start = time.perf_counter()
        for each in self._sockets:
            each.sendall(f"{word}\n".encode())
        cpu = 0.0
        for answer in self._answers:
            said, _, number = answer.readline().strip().partition(" ")
            self._expect(said, "done")
            cpu += float(number)
        ended = time.perf_counter()
        return Phase(ended - start, cpu, ended)

    def _expect(self, said: str, word: str) -> None:
        if said != word:
            raise RuntimeError(f"expected {word!r}, got {said!r}: {children.last_line(self._log)}")

    def close(self) -> None:
        """Ends them."""
        for answer, each in zip(self._answers, self._sockets, strict=True):
            answer.close()
            each.close()
        children.stop([self._process])


class Member:
    """The side that does it."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._words = self._socket.makefile("r")
        self._cpu = 0.0

    def ready(self, word: str) -> None:
        """Says what it is about to do, and waits for the word. Ends where nobody commands any more."""
        self._say(word)
        if self._words.readline().strip() != word:
            os._exit(0)
        self._cpu = time.process_time()

    def done(self) -> None:
        """Says that it is done."""
        self._say(f"done {time.process_time() - self._cpu}")

    def _say(self, line: str) -> None:
        try:
            self._socket.sendall(f"{line}\n".encode())
        except OSError:
            os._exit(0)


def serve(become: Callable[[Member, int], None]) -> None:
    """Forks the members, each of which becomes what is given, and waits until they have ended."""
    numbers = [int(number) for number in sys.argv[1].split(",")]
    pids = []
    for i, number in enumerate(numbers):
        if (pid := os.fork()) == 0:
            for other in numbers[:i] + numbers[i + 1 :]:
                os.close(other)
            _end_with_parent()
            become(Member(number), i)
            os._exit(0)
        pids.append(pid)
    for number in numbers:
        os.close(number)
    signal.signal(signal.SIGTERM, lambda *_: _end(pids))
    for pid in pids:
        os.waitpid(pid, 0)


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _end_with_parent() -> None:
    import ctypes

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
