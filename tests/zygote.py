"""Processes for tests without the seconds that their imports take.

Nurseries import what the programs need and fork a real process, killable as any, for each that a test starts.
A forked server forks its worker in the same way. There is one for servers and one for all others, because
gRPC decides when it is imported how much it says, and a server reads that. Both are forks of one root, which
has imported torch; it serves all workers of a run of the tests, and imports nothing until one of them asks.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from common.access.quiet_grpc import import_grpc_quietly
from common.processes.forks import fork, share_memory
from common.processes.parent import end_with_parent
from fedlab.processes import nursery
from fedlab.processes.children import inherited
from fedlab.processes.nursery import Forked, Nursery

PACKAGES = ("common", "fedclient", "fedserver")
"""What the zygote imports, all of it but the programs themselves."""
LATER = ("numpy.random", "grpc._channel", "torch.utils._device")
"""What others import when it is first used."""
SERVERS, OTHERS = "servers", "others"
ROOT = "TESTS_ZYGOTE"
"""Environment variable: where the root listens, so that all workers of a run of the tests ask the same."""
_started: list[subprocess.Popen[bytes]] = []


@cache
def root() -> str:
    """Where the root of all nurseries listens, which is started unless there is one."""
    if ROOT not in os.environ:
        name = f"fedpvr-tests-{os.getpid()}-{secrets.token_hex(4)}"
        listeners = {kind: socket.socket(socket.AF_UNIX) for kind in (SERVERS, OTHERS)}
        for kind, listener in listeners.items():
            listener.bind(_address(name, kind))
            listener.listen()
        numbers = [listener.fileno() for listener in listeners.values()]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", *map(str, numbers)],
            pass_fds=numbers,
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in inherited().items() if not name.startswith("FEDPVR_")},
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )
        for listener in listeners.values():
            listener.close()
        _started.append(process)
        os.environ[ROOT] = name
    return os.environ[ROOT]


def end() -> None:
    """Ends the root, and with it all that it has forked, if this process has started it."""
    for process in _started:
        process.kill()
        process.wait()
    _started.clear()


def _address(name: str, kind: str) -> str:
    return f"\0{name}-{kind}"  # Not in the file system, so nothing is left of it.


class Zygote(Nursery):
    """Forks in a folder, as tests want it."""

    def __init__(self, kind: str) -> None:
        """`kind` is SERVERS or OTHERS."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(_address(root(), kind))
        self._listen_to(connection)

    def start_in(self, folder: Path, module: str, arguments: Sequence[str], log: Path) -> Forked:
        """`python -m MODULE ARGUMENT...` in this folder, with its output added to a log."""
        return self.ask(module=module, arguments=arguments, folder=str(folder), log=str(log))


def _import_all() -> None:
    """Every module of the programs."""
    import torch

    import fedserver.worker.process

    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith(".__main__"):
                with suppress(ImportError):  # Of a library that is an extra, and not here.
                    importlib.import_module(module.name)
    for name in LATER:
        importlib.import_module(name)
    torch.set_num_threads(1)
    fedserver.worker.process.start = _fork_worker  # type: ignore[assignment]


def _become(module: str, arguments: list[str], folder: str, log: str) -> None:
    """What `python -m MODULE ARGUMENT...` does in a folder."""
    end_with_parent(signal.SIGKILL)  # None outlives the tests.
    os.chdir(folder)
    sys.path[0] = folder
    # Clients of other tests are none of ours: a stopped one must not keep ours from training.
    tempfile.tempdir = str(Path(log).parent)
    nursery.become(module, arguments, log)


class _ForkedWorker:
    """A worker of a server, with the methods of subprocess.Popen that the server uses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._file = os.pidfd_open(pid)

    def terminate(self) -> None:
        """SIGTERM."""
        signal.pidfd_send_signal(self._file, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        signal.pidfd_send_signal(self._file, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for its end."""
        if not select.select([self._file], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
        os.close(self._file)
        with suppress(ChildProcessError):  # Of later ones the server is not the parent.
            os.waitpid(self._pid, 0)


_line: socket.socket | None = None
"""To the process that forks the workers of this server."""


def _fork_worker(connection: int) -> _ForkedWorker:
    """In the place of `fedserver.worker.process.start`.

    A server with threads of gRPC cannot fork, and may want another worker later: so there is a process that
    was forked before it had any, which is nobody's child and ends when the server does.
    """
    global _line
    if _line is None:
        _line, theirs = socket.socketpair()
        os.waitpid(fork(_detach, theirs), 0)
        theirs.close()
        return _ForkedWorker(fork(_become_worker, connection))
    socket.send_fds(_line, [b"."], [connection])
    return _ForkedWorker(int.from_bytes(_line.recv(4), "little"))


def _detach(line: socket.socket) -> None:
    if os.fork() == 0:
        nursery.close_all_but(line.fileno())
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody asks how workers end.
        while connections := socket.recv_fds(line, 1, 1)[1]:
            line.sendall(fork(_become_worker, connections[0]).to_bytes(4, "little"))
            os.close(connections[0])
    os._exit(0)


def _become_worker(connection: int) -> None:
    """What `python -P -m fedserver.worker.lifeline FD` does once it has torch."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nursery.close_all_but(connection)
    sys.path.pop(0)
    sys.argv = ["fedserver.worker", str(connection)]
    importlib.import_module("fedserver.worker.__main__").main()


def _grow(listeners: dict[str, socket.socket]) -> None:
    """The root: forks a nursery of each kind when the first test asks for it."""
    gc.disable()
    while listeners:
        for listener in select.select([*listeners.values()], [], [])[0]:
            import torch  # noqa: F401

            kind = next(kind for kind, each in listeners.items() if each is listener)
            fork(_serve_all, kind, listener)
            del listeners[kind]
    os.wait()


def _serve_all(kind: str, listener: socket.socket) -> None:
    """A nursery with all imports: a fork of it serves each worker of the tests, as long as that asks."""
    end_with_parent(signal.SIGKILL)
    nursery.close_all_but(listener.fileno())
    if kind == OTHERS:
        import_grpc_quietly()
    _import_all()
    share_memory()
    while True:
        connection = listener.accept()[0]
        fork(_serve, listener, connection)
        connection.close()


def _serve(listener: socket.socket, connection: socket.socket) -> None:
    end_with_parent(signal.SIGKILL)
    listener.close()
    gc.enable()
    nursery.serve(connection.detach(), _become)


if __name__ == "__main__":
    _grow(
        {
            kind: socket.socket(fileno=int(fd))
            for kind, fd in zip((SERVERS, OTHERS), sys.argv[1:], strict=True)
        }
    )
