"""Real server and client processes for tests, in a directory of their own.

Tests wait for states, never for a time: a line in a log, a status, a point that was reached, an exit code.
The seconds here are limits for what never comes.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from safetensors.torch import load_file
from torch import Tensor

from fedlab.processes.nursery import Forked
from fedserver.console.status_client import ask
from tests.zygote import OTHERS, SERVERS, Zygote

HERE = Path(__file__).parent
WAIT_S = 90.0
POLL_S = 0.02
LASTING_PORTS = range(20_000, 32_768)
"""Systems give out ports from 32768 on by themselves, to servers and clients; these they give to nobody."""
T = TypeVar("T")
_held_ports: list[TextIOWrapper] = []


@cache
def _zygote(kind: str) -> Zygote:
    """One for all tests of this process."""
    return Zygote(kind)


def zygote_of(program: str, arguments: Iterable[str]) -> Zygote:
    """The one that forks such a program."""
    serves = program == "fedserver" and next(iter(arguments), "") == "run"
    return _zygote(SERVERS if serves else OTHERS)


class Federation:
    """Starts processes on demand and ends all of them at the end of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.plugins = {"problem:network", "problem:data"}
        """What clients may load; what a process is told to load is added."""
        self.processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "problem.py", folder)

    def server(
        self, *flags: str, listen: str = "127.0.0.1:0", name: str = "server", through: Sequence[str] = ()
    ) -> str:
        """Starts a server and returns its address."""
        flags = ("run", "--listen", listen, "--run-dir", "run", *flags)
        self.start(name, "fedserver", *flags, through=through)
        self.address = self.wait_for(name, r"listening on (\S+)")
        return self.address

    def client(
        self, name: str, *flags: str, server: str = "", process: str = "", through: Sequence[str] = ()
    ) -> None:
        """Starts a client with a state directory of its own; its process may have another name."""
        own = ["--server", server or self.address, "--name", name, "--state-dir", f"state/{name}"]
        for plugin in sorted(self.plugins):
            own += ["--allow-plugin", plugin]
        self.start(process or name, "fedclient", "run", *own, *flags, through=through)

    def start(self, name: str, program: str, *arguments: str, through: Sequence[str] = ()) -> None:
        """Starts a process whose output goes to a log; `through` is a module that runs it, with arguments."""
        self.plugins |= {argument for argument in arguments if re.fullmatch(r"[a-z]\w*:[a-z]\w*", argument)}
        command = [*through, program, *arguments]
        log = self.folder / f"{name}.log"
        log.touch()
        self.processes[name] = zygote_of(program, arguments).start_in(
            self.folder, command[0], command[1:], log
        )

    def log(self, name: str) -> str:
        """What a process has printed so far."""
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, pattern: str, at_most_s: float = WAIT_S) -> str:
        """Waits until a process has printed a line; returns the pattern's first group."""
        deadline = time.monotonic() + at_most_s
        while time.monotonic() < deadline:
            ended = self.processes[name].poll() is not None
            found = re.search(pattern, self.log(name))
            if found:
                return found[1] if found.groups() else found[0]
            assert not ended, f"{name} ended without {pattern!r}:\n{self.log(name)}"
            time.sleep(POLL_S)
        raise AssertionError(f"{name} never printed {pattern!r}:\n{self.log(name)}")

    def wait_for_states(self, **states: str) -> None:
        """Waits until the server says of these clients what these patterns say; `absent` if it knows none."""

        def reached() -> bool:
            clients = ask(self.address, timeout_s=WAIT_S).clients
            found = {client.name: client.state for client in clients}
            return all(re.fullmatch(state, found.get(name, "absent")) for name, state in states.items())

        wait_until(reached, f"the server at {self.address} says {states}")

    def wait_for_stop(self, name: str) -> None:
        """Waits until a process has stopped at the point at which it was to (`tests.killpoint`)."""
        stat = Path(f"/proc/{self.processes[name].pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"{name} stops")

    def go_on(self, name: str) -> None:
        """SIGCONT."""
        self.processes[name].send_signal(signal.SIGCONT)

    def exit_code(self, name: str, at_most_s: float = WAIT_S) -> int:
        """Waits for a process to end."""
        try:
            return self.processes[name].wait(at_most_s)
        except subprocess.TimeoutExpired:
            logs = "\n".join(f"{each}:\n{self.log(each)}" for each in self.processes)
            raise AssertionError(f"{name} did not end.\n{logs}") from None

    def finish(self, at_most_s: float = WAIT_S) -> None:
        """Waits for everything and asserts that it ended well."""
        for name in list(self.processes):
            assert self.exit_code(name, at_most_s) == 0, f"{name}:\n{self.log(name)}"

    def wait_for_death(self, name: str) -> None:
        """Waits until a process has been killed by its trap (`tests.killpoint`), and forgets it."""
        assert self.exit_code(name) == -signal.SIGKILL, f"{name}:\n{self.log(name)}"
        del self.processes[name]

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.wait_for_death(name)

    def stop(self, name: str) -> None:
        """Asks a process to end, and everybody else after it."""
        self.processes[name].send_signal(signal.SIGTERM)
        assert self.exit_code(name) == 0, f"{name}:\n{self.log(name)}"
        for other in self.processes.values():
            other.kill()

    def close(self) -> None:
        """Ends what is left."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for log in self.folder.glob("*.log"):
            assert "Traceback" not in (text := log.read_text()), f"{log.name}:\n{text}"

    def tensors(self, name: str) -> dict[str, Tensor]:
        """`model` or `control` of the run directory."""
        tensors: dict[str, Tensor] = load_file(self.folder / "run" / f"{name}.safetensors")
        return tensors

    def bytes(self, name: str) -> bytes:
        """The same as a file, but for its metadata, which names the run."""
        return without_metadata(self.folder / "run" / f"{name}.safetensors")

    def rounds(self) -> list[dict[str, Any]]:
        """rounds.jsonl."""
        return self._lines("rounds.jsonl")

    def traffic(self) -> list[dict[str, Any]]:
        """traffic.jsonl."""
        return self._lines("traffic.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "run" / name).read_text().splitlines()]


def without_metadata(path: Path) -> bytes:
    """A safetensors file as it would be if it said nothing of itself."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return json.dumps(header).encode() + data[start:]


@contextmanager
def forked_children() -> Iterator[Any]:
    """Processes that `fedlab` starts are forked in the block too; yields what stands in for its nursery."""

    def start(module: str, arguments: Iterable[str], log: Path) -> Forked:
        log.write_bytes(b"")
        arguments = [*arguments]
        return zygote_of(module, arguments).start_in(Path.cwd(), module, arguments, log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedlab.processes.children.start", start)
        nursery = SimpleNamespace(start=start, has_ended=False, close=lambda: None)
        patch.setattr("fedlab.demo.Nursery", lambda _: nullcontext(nursery))
        patch.setattr("fedlab.engine.local.Nursery", lambda _: nursery)
        yield nursery


def wait_until(reached: Callable[[], T], what: str) -> T:
    """Waits for a state; returns what tells that it is reached."""
    deadline = time.monotonic() + WAIT_S
    while not (found := reached()):
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(POLL_S)
    return found


def children(pid: int) -> list[int]:
    """Processes that a process has started, and that have not ended."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def descendants(pid: int) -> list[int]:
    """The same with what those have started."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def wait_for_end(*pids: int) -> None:
    """Waits until none of these processes runs, whoever started them."""
    wait_until(lambda: not any(map(_alive, pids)), f"processes {pids} end")


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended counts as ended, whether or not its parent has noticed.

    Its files are open, and locked, until the last of its threads has ended.
    """
    try:
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
        states = [(each / "stat").read_text().rpartition(")")[2].split()[0] for each in threads]
    except (FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}").exists()  # A thread has ended meanwhile; what of the others?
    return not set(states) <= {"Z", "X"}


@atexit.register
def _give_ports_back() -> None:
    for lock in _held_ports:
        lock.close()


def lasting_address() -> str:
    """An address for a server that comes back to it: between its processes, nobody else is given its port."""
    folder = Path(tempfile.gettempdir()) / f"fedpvr-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in LASTING_PORTS:
        lock = (folder / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.create_server(("127.0.0.1", port)):
                _held_ports.append(lock)
                return f"127.0.0.1:{port}"
        except OSError:  # Another test has it, or something else listens there.
            lock.close()
    raise AssertionError("every port is taken")
