"""Processes forked from one that has imported torch and the rest, which takes seconds, once for all of them.

A forked process is what `python -m MODULE ARGUMENT...` would have made, but for the imports: real, with a
log, and killable as any. The nursery is a process of its own because a fork copies one thread only, and
whoever starts processes may have several.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.access.quiet_grpc import import_grpc_quietly
from common.errors import RunError
from common.processes.forks import fork, share_memory
from common.processes.parent import end_with_parent
from fedlab.processes.children import command, inherited

ANSWER_S = 90.0
CLIENT = ("numpy.random", "fedclient.cli", "fedclient.run.live", "fedclient.transport.grpc_transport")
"""What a client imports sooner or later. Of gRPC no channel and no server exists, so there are no threads."""
SIMULATION = ("fedlab.simulation", "fedlab.cli", *CLIENT)
"""The same of a simulation."""


def having(modules: Sequence[str]) -> list[str]:
    """The program of a nursery that has imported these."""
    return command("fedlab.processes.nursery", modules)


class Forked:
    """A forked process, with the methods of subprocess.Popen that are in use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.peak_mb = 0.0
        """Of its memory, once it has ended; what it shares with the nursery counts too."""
        self._ended = threading.Event()

    def end(self, code: int, peak_kb: int) -> None:
        """Notes how it ended."""
        self.peak_mb = peak_kb / 1024
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it still runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # It has just ended.
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """This side: asks for processes and hears of their ends. None outlives it."""

    def __init__(self, program: Sequence[str], folder: Path | None = None) -> None:
        """`program` is what serves, started in a folder."""
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [*program, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            env=inherited(),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        theirs.close()
        self._listen_to(ours)

    def _listen_to(self, connection: socket.socket) -> None:
        """Asks over this connection from now on."""
        self._file = connection.makefile("rw")
        connection.close()
        self._lock = threading.Lock()
        self._started: list[Forked] = []
        self._answered = threading.Semaphore(0)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, and with it what it has forked."""
        self._process.terminate()
        self._process.wait()
        self._listener.join()
        self._file.close()

    @property
    def has_ended(self) -> bool:
        """Whether it can fork nobody any more."""
        return self._process.poll() is not None

    def start(self, module: str, arguments: Sequence[str], log: Path) -> Forked:
        """`python -m MODULE ARGUMENT...`, with its output added to a log."""
        return self.ask(module=module, arguments=arguments, log=str(log))

    def ask(self, **request: Any) -> Forked:
        """A process that does what the program does with such a request."""
        with self._lock:
            before = len(self._started)
            with suppress(OSError):  # It has ended: then nobody answers.
                self._file.write(json.dumps(request) + "\n")
                self._file.flush()
            self._answered.acquire(timeout=ANSWER_S)
            if len(self._started) == before:
                raise RunError("the process that forks others has ended, or does not answer")
            return self._started[-1]

    def _listen(self) -> None:
        for line in self._file:
            event = json.loads(line)
            if event["code"] is None:
                self._started.append(Forked(event["pid"]))
                self._answered.release()
            else:
                ended = next(p for p in reversed(self._started) if p.pid == event["pid"])
                ended.end(event["code"], event["peak_kb"])
        for process in self._started:
            if process.returncode is None:  # It was to tell of this one's end, and has taken it along.
                process.end(-signal.SIGKILL, 0)
        self._answered.release()


def serve(fd: int, program: Callable[..., object]) -> None:
    """The other side: forks on request, for a program that takes it, until nobody asks any more."""
    assert threading.active_count() == 1, "a fork copies one thread only"
    share_memory()
    connection = socket.socket(fileno=fd)
    # Children that end interrupt the wait for the next request.
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file, buffer = connection.makefile("w"), b""
    while True:
        ready, _, _ = select.select([connection.fileno(), wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap(file)
        if connection.fileno() in ready:
            data = connection.recv(1 << 16)
            if not data:
                return
            buffer += data
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                pid = fork(program, **json.loads(line))
                print(json.dumps({"pid": pid, "code": None}), file=file, flush=True)


def _reap(file: Any) -> None:
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ended = {"pid": pid, "code": os.waitstatus_to_exitcode(status), "peak_kb": used.ru_maxrss}
        print(json.dumps(ended), file=file, flush=True)


def become(module: str, arguments: list[str], log: str) -> None:
    """What `python -m MODULE ARGUMENT...` does, with its output in a log."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    close_all_but()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def close_all_but(*wanted: int) -> None:
    """Nothing but these and the standard streams is inherited, locks of files least of all."""
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd not in wanted:
            with suppress(OSError):  # The listing's own is closed by now.
                os.close(fd)


def _become_child(module: str, arguments: list[str], log: str) -> None:
    os.setsid()
    end_with_parent(parent=os.getppid())
    become(module, arguments, log)


if __name__ == "__main__":
    import_grpc_quietly()
    for name in sys.argv[1:-1]:
        importlib.import_module(name)
    serve(int(sys.argv[-1]), _become_child)
