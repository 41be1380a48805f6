"""Runs a case: simulated, or as a server and clients on loopback, each from one of two trees."""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from tests.same_bits.cases import CASES, COMMON, NUM_CLIENTS, SHARDS
from tests.same_bits.forker import Forker, RunFailure

TIMEOUT_S = 120.0
LOOK_S = 0.1
TAIL_LINES = 12


@dataclass(frozen=True)
class Run:
    """A case, and which tree its server and its clients come from; a simulation has no clients apart."""

    case: str
    server: str
    clients: str | None

    @property
    def folder(self) -> str:
        """A name for what it leaves behind."""
        kind = f"{self.clients} clients, {self.server} server" if self.clients else f"{self.server} simulated"
        return f"{self.case}, {kind}".replace(",", "").replace(" ", "-")


class Processes:
    """What one federation has started; all of it ends with the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[str, tuple[Forker, int]] = {}
        self._deadline = time.monotonic() + TIMEOUT_S

    def __enter__(self) -> Processes:
        self._folder.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        for forker, pid in self._started.values():
            forker.end(pid)

    def start(self, name: str, forker: Forker, program: str, *arguments: str) -> None:
        """Starts a program, with its output in a log of this name."""
        self._log(name).touch()
        self._started[name] = (forker, forker.start(program, list(arguments), self._log(name)))

    def wait_for_line(self, name: str, pattern: str) -> str:
        """The first group of a pattern, once a log has it."""
        while not (found := re.search(pattern, self._log(name).read_text())):
            self._look_after([name], may_end=False)
        return found[1]

    def wait_for_all(self) -> None:
        """Waits until everything has ended well."""
        running = list(self._started)
        while running:
            running = self._look_after(running, may_end=True)

    def _look_after(self, names: list[str], *, may_end: bool) -> list[str]:
        """Those that still run, a moment later."""
        running = []
        for name in names:
            forker, pid = self._started[name]
            code = forker.code(pid)
            if code is None:
                running.append(name)
            elif code or not may_end:
                raise RunFailure(f"{name} ended with {code}:\n{self._tail(name)}")
        if running and time.monotonic() > self._deadline:
            raise RunFailure(f"{running[0]} has not ended after {TIMEOUT_S:.0f} s:\n{self._tail(running[0])}")
        time.sleep(LOOK_S)
        return running

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _tail(self, name: str) -> str:
        lines = self._log(name).read_text().splitlines()
        return "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])


def refusal(folder: Path) -> str | None:
    """What a client said of releases that do not understand each other; None if it did not."""
    logs = {path.stem: path.read_text() for path in sorted(folder.glob("*.log"))}
    said = {
        name: found[0] for name, text in logs.items() if (found := re.search(r".*protocol version.*", text))
    }
    clients = [f"{name}: {line}" for name, line in said.items() if name != "server"]
    if not clients or any("Traceback" in text for text in logs.values()):
        return None
    return f"{clients[0]} (the server's log {'says so too' if 'server' in said else 'says nothing'})"


def federate(run: Run, forkers: dict[str, Forker], folder: Path) -> Path:
    """Runs a federation to its end and returns the run directory."""
    flags = ["--run-dir", "run", *shlex.split(f"{COMMON} {CASES[run.case]}")]
    with Processes(folder) as processes:
        (folder / "shards.json").write_text(json.dumps(SHARDS))
        if run.clients is None:
            processes.start("simulation", forkers[run.server], "fedlab", "simulate", *flags)
        else:
            listen = ("--listen", "127.0.0.1:0")
            processes.start("server", forkers[run.server], "fedserver", "run", *listen, *flags)
            address = processes.wait_for_line("server", r"listening on (\S+)")
            for i in range(NUM_CLIENTS):
                # The names that a simulation gives, because seats go by names.
                name = f"client-{i}"
                own = ("--server", address, "--name", name, "--state-dir", f"state/{name}")
                processes.start(name, forkers[run.clients], "fedclient", "run", *own)
        processes.wait_for_all()
    return folder / "run"
