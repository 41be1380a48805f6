"""Client processes for tests without two seconds of importing torch each.

One process per test worker imports torch and forks a real client process, killable as any, for each that a
test starts: as `python -m fedclient` would have made it, but for the imports. gRPC is imported after the fork
only, because its threads would not survive one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any


class Forked:
    """A forked process, with the methods of subprocess.Popen that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def end(self, code: int) -> None:
        """Notes how it ended."""
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

    def start(self, arguments: list[str], folder: Path, log: Path) -> Forked:
        """A client process in this folder, with its output in a log."""
        with self._lock:
            request = {"arguments": arguments, "folder": str(folder), "log": str(log)}
            self._file.write(json.dumps(request) + "\n")
            self._file.flush()
            if not self._answered.acquire(timeout=60):
                raise RuntimeError("the process that forks clients does not answer")
            return self._started[-1]

    def _listen(self) -> None:
        for line in self._file:
            event = json.loads(line)
            if event["code"] is None:
                self._started.append(Forked(event["pid"]))
                self._answered.release()
            else:
                next(p for p in reversed(self._started) if p.pid == event["pid"]).end(event["code"])


def _serve(fd: int) -> None:
    """The other side: forks on request until nobody asks any more."""
    import torch

    import common.models.build
    import fedclient.training.train

    assert "grpc" not in sys.modules, (common.models.build, fedclient.training.train)
    torch.set_num_threads(1)
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
                pid = os.fork()
                if pid == 0:
                    _become_client(json.loads(line), [connection.fileno(), wake_read, wake_write])
                print(json.dumps({"pid": pid, "code": None}), file=file, flush=True)


def _reap(file: Any) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}), file=file, flush=True)


def _become_client(request: dict[str, Any], inherited: list[int]) -> None:
    """Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(request["folder"])
        sys.path[0] = request["folder"]
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for target in (1, 2):
            os.dup2(log, target)
        for fd in (log, *inherited):
            os.close(fd)
        from fedclient.cli import main

        try:
            main(request["arguments"], prog_name="fedclient")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
