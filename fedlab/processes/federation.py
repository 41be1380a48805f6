"""A federation of real processes on this machine: one server, N replicas of a client, on loopback."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from common.errors import RunError
from fedlab.processes import children
from fedlab.processes.nursery import Nursery

START_S = 60.0


class LocalFederation:
    """Starts the processes, with logs in the run directory; none outlives the block, however it is left."""

    def __init__(
        self, run_dir: Path, num_clients: int, server_flags: Sequence[str], nursery: Nursery
    ) -> None:
        """Clients are forked in the nursery; the server, which is to be without torch, is not."""
        self.run_dir = run_dir
        self._nursery = nursery
        self._num_clients = num_clients
        self._server_flags = server_flags
        self._processes: dict[str, children.Child] = {}

    def __enter__(self) -> LocalFederation:
        self.run_dir.mkdir(parents=True)
        try:
            flags = ["--listen", "127.0.0.1:0", "--run-dir", str(self.run_dir), *self._server_flags]
            many = ["--num-clients", str(self._num_clients)]
            self._processes["server"] = children.start(
                "fedserver", ["run", *many, *flags], self._log("server")
            )
            address = self._address()
            own = ["--name", "client", "--state-dir", str(self.run_dir / "clients")]
            many = ["--replicas", str(self._num_clients)]
            self._processes["clients"] = self._nursery.start(
                "fedclient", ["run", "--server", address, *own, *many], self._log("clients")
            )
        except BaseException:
            children.stop(self._processes.values())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        children.stop(self._processes.values())

    def running(self) -> bool:
        """Whether the run still goes on; raises if a process ended with an error."""
        for name, process in self._processes.items():
            if process.poll():
                line = children.last_line(self._log(name))
                raise RunError(f"{name} ended with code {process.returncode}: {line}")
        return any(process.poll() is None for process in self._processes.values())

    def _log(self, name: str) -> Path:
        return self.run_dir / f"{name}.log"

    def _address(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            found = re.search(r"listening on (\S+)", self._log("server").read_text())
            if found:
                return found[1]
            self.running()
            time.sleep(0.02)
        line = children.last_line(self._log("server"))
        raise RunError(f"the server did not start within {START_S:.0f} s: {line}")
