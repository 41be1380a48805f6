"""Real server and client processes for tests, in a directory of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.zygote import Forked, Zygote

HERE = Path(__file__).parent
WAIT_S = 90.0


@cache
def _zygote() -> Zygote:
    """One for all tests of this process."""
    return Zygote()


class Federation:
    """Starts processes on demand and ends all of them at the end of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "problem.py", folder)

    def server(self, *flags: str, listen: str = "127.0.0.1:0", name: str = "server") -> str:
        """Starts a server and returns its address."""
        self.start(name, "fedserver", "run", "--listen", listen, "--run-dir", "run", *flags)
        self.address = self.wait_for(name, r"listening on (\S+)")
        return self.address

    def client(self, name: str, *flags: str, server: str = "") -> None:
        """Starts a client with a state directory of its own."""
        address = server or self.address
        self.start(
            name,
            "fedclient",
            "run",
            "--server",
            address,
            "--name",
            name,
            "--state-dir",
            f"state/{name}",
            *flags,
        )

    def start(self, name: str, program: str, *arguments: str) -> None:
        """Starts a process whose output goes to a log."""
        if program == "fedclient":
            (self.folder / f"{name}.log").touch()
            self.processes[name] = _zygote().start(list(arguments), self.folder, self.folder / f"{name}.log")
            return
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", program, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self, name: str) -> str:
        """What a process has printed so far."""
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, pattern: str) -> str:
        """Waits until a process has printed a line; returns the pattern's first group."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log(name))
            if found:
                return found[1] if found.groups() else found[0]
            if self.processes[name].poll() is not None and not re.search(pattern, self.log(name)):
                raise AssertionError(f"{name} ended without {pattern!r}:\n{self.log(name)}")
            time.sleep(0.02)
        raise AssertionError(f"{name} never printed {pattern!r}:\n{self.log(name)}")

    def exit_code(self, name: str) -> int:
        """Waits for a process to end."""
        try:
            return self.processes[name].wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} did not end:\n{self.log(name)}") from None

    def finish(self) -> None:
        """Waits for everything and asserts that it ended well."""
        for name in list(self.processes):
            assert self.exit_code(name) == 0, f"{name}:\n{self.log(name)}"

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes.pop(name).wait()

    def stop(self, name: str) -> None:
        """Asks a process to end, and everybody else after it."""
        self.processes[name].send_signal(signal.SIGTERM)
        assert self.exit_code(name) == 0
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
        """The file itself."""
        return (self.folder / "run" / f"{name}.safetensors").read_bytes()

    def rounds(self) -> list[dict[str, Any]]:
        """rounds.jsonl."""
        return self._lines("rounds.jsonl")

    def traffic(self) -> list[dict[str, Any]]:
        """traffic.jsonl."""
        return self._lines("traffic.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "run" / name).read_text().splitlines()]


def alive(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
