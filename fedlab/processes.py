"""A federation of real processes on this machine: one server, N clients, on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from common.errors import RunError

START_S = 60.0
STOP_S = 5.0


class LocalFederation:
    """Starts the processes, with logs in the run directory; none outlives the block, however it is left."""

    def __init__(self, run_dir: Path, num_clients: int, server_flags: Sequence[str]) -> None:
        self.run_dir = run_dir
        self._num_clients = num_clients
        self._server_flags = server_flags
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalFederation:
        self.run_dir.mkdir(parents=True)
        try:
            flags = ["--listen", "127.0.0.1:0", "--run-dir", str(self.run_dir), *self._server_flags]
            self._start("server", "fedserver", ["--num-clients", str(self._num_clients), *flags])
            address = self._address()
            for i in range(self._num_clients):
                name = f"client-{i}"
                state = str(self.run_dir / "clients" / name)
                self._start(name, "fedclient", ["--server", address, "--name", name, "--state-dir", state])
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def running(self) -> bool:
        """Whether the run still goes on; raises if a process ended with an error."""
        for name, process in self._processes.items():
            if process.poll():
                raise RunError(f"{name} ended with code {process.returncode}: {self._last_line(name)}")
        return any(process.poll() is None for process in self._processes.values())

    def _start(self, name: str, program: str, flags: list[str]) -> None:
        with (self.run_dir / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", program, "run", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={k: v for k, v in os.environ.items() if not k.startswith(("FEDSERVER_", "FEDCLIENT_"))},
                # Ctrl-C reaches this process alone, which then ends the others in order.
                start_new_session=True,
            )

    def _address(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            found = re.search(r"listening on (\S+)", (self.run_dir / "server.log").read_text())
            if found:
                return found[1]
            self.running()
            time.sleep(0.02)
        raise RunError(f"the server did not start within {START_S:.0f} s: {self._last_line('server')}")

    def _last_line(self, name: str) -> str:
        lines = (self.run_dir / f"{name}.log").read_text().splitlines()
        return lines[-1] if lines else "no output"

    def _stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
