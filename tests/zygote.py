"""Processes for tests without the seconds that their imports take.

One process per test worker imports what the programs need and forks a real process, killable as any, for each
that a test starts: as `python -m MODULE ARGUMENT...` would have made it, but for the imports. A forked server
forks its worker in the same way. gRPC is only imported: a fork would not survive a channel or a server of it.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.processes.forks import fork, share_memory
from common.processes.parent import end_with_parent

PACKAGES = ("common", "fedclient", "fedserver")
"""What the zygote imports, all of it but the programs themselves."""
LATER = ("numpy.random", "grpc._channel", "torch.utils._device")
"""What others import when it is first used."""
ANSWER_S = 90.0


class Forked:
    """A forked process, with the methods of subprocess.Popen that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.peak_mb = 0.0
        """Of its memory, once it has ended; what it shares with the zygote counts too."""
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


class Zygote:
    """This side: asks for processes and hears of their ends."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._file = ours.makefile("rw")
        ours.close()
        self._lock = threading.Lock()
        self._started: list[Forked] = []
        self._answered = threading.Semaphore(0)
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, module: str, *arguments: str, folder: Path, log: Path) -> Forked:
        """`python -m MODULE ARGUMENT...` in this folder, with its output added to a log."""
        with self._lock:
            request = {"module": module, "arguments": arguments, "folder": str(folder), "log": str(log)}
            self._file.write(json.dumps(request) + "\n")
            self._file.flush()
            if not self._answered.acquire(timeout=ANSWER_S):
                raise RuntimeError("the process that forks others does not answer")
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


def _serve(fd: int) -> None:
    """The other side: forks on request until nobody asks any more."""
    _import_all()
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
                request = json.loads(line)
                pid = fork(_become, **request)
                print(json.dumps({"pid": pid, "code": None}), file=file, flush=True)


def _import_all() -> None:
    """Every module of the programs."""
    import torch

    import fedserver.worker.process

    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
    for name in LATER:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork copies one thread only"
    torch.set_num_threads(1)
    fedserver.worker.process.start = _fork_worker  # type: ignore[assignment]
    share_memory()


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


def _become(module: str, arguments: list[str], folder: str, log: str) -> None:
    """What `python -m MODULE ARGUMENT...` does in a folder."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_with_parent(signal.SIGKILL)  # None outlives the tests.
    os.chdir(folder)
    sys.path[0] = folder
    # Clients of other tests are none of ours: a stopped one must not keep ours from training.
    tempfile.tempdir = str(Path(log).parent)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _close_all_but()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class _ForkedWorker:
    """A child of a server, with the methods of subprocess.Popen that the server uses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def terminate(self) -> None:
        """SIGTERM."""
        os.kill(self._pid, signal.SIGTERM)

    def wait(self) -> None:
        """Waits for its end."""
        os.waitpid(self._pid, 0)


def _fork_worker(connection: int) -> _ForkedWorker:
    """In the place of `fedserver.worker.process.start`."""
    return _ForkedWorker(fork(_become_worker, connection))


def _become_worker(connection: int) -> None:
    """What `python -P -m fedserver.worker.lifeline FD` does once it has torch."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _close_all_but(connection)
    sys.path.pop(0)
    sys.argv = ["fedserver.worker", str(connection)]
    importlib.import_module("fedserver.worker.__main__").main()


def _close_all_but(*wanted: int) -> None:
    """Nothing but these and the standard streams is inherited, locks of files least of all."""
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd not in wanted:
            with suppress(OSError):  # The listing's own is closed by now.
                os.close(fd)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
