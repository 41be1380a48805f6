"""Flower's processes: started, watched and ended, each by its id."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedlab.processes import children
from measure import processes

ENVIRONMENT = Path(__file__).parent.parent.parent / ".venv-flower"
APP = Path(__file__).parent / "app"
START_S = 60.0
ROUND_S = 150.0
POLL_S = 0.05


@dataclass(frozen=True)
class Took:
    """What rounds took, without the first."""

    median_s: float
    first_close_s: float
    """From the start of the first process."""
    server_mb: float = 0.0
    """Peak of the memory of all processes of the server's side (Pss)."""
    server_anon_mb: float = 0.0
    """Peak of RssAnon: of all these processes, or, of ours, of the server alone without its worker."""
    server_cpu_s: float = 0.0
    """A round."""
    client_cpu_s: float = 0.0
    bytes_per_round: float = 0.0
    """As it counts them itself."""


class PeerFailure(Exception):
    """Flower did not come to the end."""


class Deployment:
    """A SuperLink and SuperNodes, with the isolation that they have by default, and one run on them."""

    def __init__(self, folder: Path, num_clients: int) -> None:
        self._folder = folder
        self._num_clients = num_clients
        self._port, *ports = _free_ports(num_clients + 1)
        self._home = folder / "home"
        self._home.mkdir()
        address = f"127.0.0.1:{self._port}"
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "bench"\n[superlink.bench]\naddress = "{address}"\ninsecure = true\n'
        )
        self._started = time.time()
        link = ["--insecure", "--port", str(self._port), "--disable-runtime-dependency-installation"]
        self._link = self._start("flower-superlink", *link)
        node = ["--insecure", "--superlink", address, "--port"]
        self._nodes = [self._start("flower-supernode", *node, str(port)) for port in ports]

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """In a session of its own, all of which is ended at the end."""
        number = len(list(self._folder.glob("*.log")))
        with (self._folder / f"{program}-{number}.log").open("wb") as log:
            return subprocess.Popen(
                [ENVIRONMENT / "bin" / program, *arguments],
                cwd=self._folder,
                env=_environment(self._home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, shapes: Path, rounds: int) -> Took:
        """One run to its end."""
        _wait_for_port(self._port)
        log = self._folder / "rounds.jsonl"
        config = f"shapes='{shapes}' log='{log}' rounds={rounds} clients={self._num_clients}"
        said = self._flwr("run", str(APP), "bench", "-c", config)
        found = re.search(r"started run (\d+)", said)
        if found is None:
            raise PeerFailure(f"flwr run said: {said}")
        measures = {"all": self._server_mb, "anon": self._server_anon_mb}
        with processes.PeakMemory(measures, every_s=0.1) as memory:
            times = _wait_for_rounds(log, 1, START_S + ROUND_S, self._num_clients)
            before = self._cpu()
            times = _wait_for_rounds(log, rounds, rounds * ROUND_S, self._num_clients)
            server_cpu, client_cpu = (b - a for a, b in zip(before, self._cpu(), strict=True))
        return Took(
            median_s=median(b - a for a, b in itertools.pairwise(times)),
            first_close_s=times[0] - self._started,
            server_mb=memory.peak_mb["all"],
            server_anon_mb=memory.peak_mb["anon"],
            server_cpu_s=server_cpu / (rounds - 1),
            client_cpu_s=client_cpu / (rounds - 1),
            bytes_per_round=self._bytes(found[1]) / rounds,
        )

    def _flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            [ENVIRONMENT / "bin" / "flwr", *arguments],
            cwd=self._folder,
            env=_environment(self._home),
            capture_output=True,
            text=True,
            timeout=START_S,
        )
        return done.stdout + done.stderr

    def _bytes(self, run_id: str) -> float:
        said = self._flwr("list", "bench", "--run-id", run_id, "--format", "json")
        found = re.search(r'"total-bytes": (\d+)', said)
        return float(found[1]) if found else 0.0

    def _server_side(self) -> list[int]:
        return [self._link.pid, *processes.descendants(self._link.pid)]

    def _server_mb(self) -> float:
        return sum(map(processes.shared_out_mb, self._server_side()))

    def _server_anon_mb(self) -> float:
        return sum(processes.memory_mb(pid, "RssAnon") for pid in self._server_side())

    def _cpu(self) -> tuple[float, float]:
        """So far: the server's side, and the clients'."""
        clients = [pid for node in self._nodes for pid in (node.pid, *processes.descendants(node.pid))]
        return processes.cpu_seconds(self._server_side()), processes.cpu_seconds(clients)

    def close(self) -> None:
        """Ends everything that was started."""
        end([*self._nodes, self._link])


def simulated(folder: Path, shapes: Path, num_clients: int, rounds: int, cores: int | None = None) -> Took:
    """Rounds of Flower's Ray simulation, with so many cores a client, or as many as are its default."""
    log, started = folder / "simulation.jsonl", time.time()
    home = folder / "simulation-home"
    home.mkdir()
    told = [] if cores is None else [str(cores)]
    with (folder / "simulation.log").open("wb") as output:
        process = subprocess.Popen(
            [
                ENVIRONMENT / "bin" / "python",
                APP / "simulation.py",
                shapes,
                str(num_clients),
                str(rounds),
                log,
                *told,
            ],
            cwd=folder,
            env=_environment(home) | {"PYTHONPATH": str(APP)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        times = _wait_for_rounds(log, rounds, rounds * ROUND_S, num_clients)
    except PeerFailure as failure:
        raise PeerFailure(f"{failure}: {children.last_line(folder / 'simulation.log')}") from failure
    finally:
        end([process])
    return Took(median(b - a for a, b in itertools.pairwise(times)), times[0] - started)


def end(started: list[subprocess.Popen[bytes]]) -> None:
    """Ends processes and all that they have started, whatever session that is in."""
    everybody = [pid for process in started for pid in processes.descendants(process.pid)]
    children.stop(started)
    for pid in everybody:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _environment(home: Path) -> dict[str, str]:
    """Without settings of ours and without reports to anybody."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FED", "PYTHON"))}
    return kept | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(POLL_S)
    raise PeerFailure(f"nothing listens on port {port} after {START_S:.0f} s")


def _wait_for_rounds(log: Path, count: int, at_most_s: float, updates: int) -> list[float]:
    """The times at which rounds ended, once there are as many."""
    deadline = time.monotonic() + at_most_s
    while time.monotonic() < deadline:
        lines = log.read_text().splitlines() if log.exists() else []
        if len(lines) >= count:
            found = [json.loads(line) for line in lines]
            if any(line["updates"] != updates for line in found):
                raise PeerFailure(f"a round has {found[-1]['updates']} updates instead of {updates}")
            return [line["time"] for line in found]
        time.sleep(POLL_S)
    raise PeerFailure(f"{log.name} has fewer than {count} rounds after {at_most_s:.0f} s")
