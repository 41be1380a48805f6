"""What does a client cost the server, in rounds of 10, 100 and 1,000 clients with a model of 100 KB?

Real processes on this machine: a server, and `fedclient run --replicas N` with one local step a round. Per
client and round it should not matter how many others there are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from measure import report

MODEL = ["--model", "cnn", "--width", "0.8"]
START_S = 600.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """A run with so many clients."""

    clients: int
    join_s: float
    """From the first client that is here to the last."""
    round_s: float
    """Median."""
    server_join_ms: float
    """CPU time of the server for the joins, per client."""
    server_round_ms: float
    """CPU time of the server per client and round."""
    client_round_ms: float
    """CPU time of all client processes per client and round, one local step included."""
    server_mb: float
    """Memory of the server's own process."""
    client_mb: float
    """Memory of all client processes that no other process shares, per client."""


def main() -> None:
    """Measures and prints."""
    parser = report.parser(__doc__)
    parser.add_argument("--clients", default="10,100,1000", help="numbers of clients")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--algorithm", default="fedpvr")
    arguments = parser.parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    numbers, rounds = ("2", 2) if arguments.quick else (arguments.clients, arguments.rounds)
    rows = [measure(int(n), rounds, arguments.algorithm) for n in numbers.split(",")]
    for row in rows:
        found.row("by number of clients; milliseconds are processor time per client", **asdict(row))
    first, last = rows[0], rows[-1]
    found.ratio(
        f"server CPU per client and round, N = {last.clients} / N = {first.clients}",
        last.server_round_ms / first.server_round_ms,
        at_most=1.5,
    )
    found.finish()


def measure(num_clients: int, rounds: int, algorithm: str) -> Row:
    """One federation from its start to its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ["--num-clients", str(num_clients), "--rounds", str(rounds), "--algorithm", algorithm]
        work = ["--local-steps", "1", "--batch-size", "1", "--eval-every", "0", "--alpha", "1000"]
        server = start(folder, "server", "fedserver", "run", "--listen", "127.0.0.1:0", "--run-dir", "run",
                       *MODEL, *flags, *work)  # fmt: skip
        address = wait_for(folder, server, "server", r"listening on (\S+)")
        clients = start(folder, "clients", "fedclient", "run", "--server", address, "--name", "c",
                        "--state-dir", "state", "--replicas", str(num_clients), "--quiet")  # fmt: skip
        wait_for(folder, server, "server", r"1 of \d+ clients")
        joining, cpu_before = time.monotonic(), cpu_s(server.pid)
        wait_for(folder, server, "server", rf"{num_clients} of {num_clients} clients")
        joined, cpu_joined, clients_joined = time.monotonic(), cpu_s(server.pid), tree_cpu_s(clients.pid)
        wait_for(folder, server, "server", rf"round {rounds - 1}/{rounds}")
        server_mb, client_mb = own_mb(server.pid), sum(map(own_mb, children(clients.pid)))
        wait_for(folder, server, "server", rf"round {rounds}/{rounds}")
        cpu_end, clients_end = cpu_s(server.pid), tree_cpu_s(clients.pid)
        for process, log in ((server, "server.log"), (clients, "clients.log")):
            code = process.wait(START_S)
            assert code == 0, f"{log}, exit code {code}: {(folder / log).read_text()[-2000:]}"
        records = [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]
        assert all(record["updates"] == num_clients for record in records)
    work_ms = 1e3 / num_clients / rounds
    return Row(
        clients=num_clients,
        join_s=joined - joining,
        round_s=median(record["seconds"]["round"] for record in records),
        server_join_ms=(cpu_joined - cpu_before) * 1e3 / num_clients,
        server_round_ms=(cpu_end - cpu_joined) * work_ms,
        client_round_ms=(clients_end - clients_joined) * work_ms,
        server_mb=server_mb,
        client_mb=client_mb / num_clients,
    )


def start(folder: Path, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process whose output goes to a log."""
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", program, *arguments]
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def wait_for(folder: Path, process: subprocess.Popen[bytes], name: str, pattern: str) -> str:
    """Waits for a line of a log."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        ended, text = process.poll() is not None, (folder / f"{name}.log").read_text()
        if found := re.search(pattern, text):
            return found[found.lastindex or 0]
        if ended:
            break
        time.sleep(0.01)
    raise SystemExit(f"{name} never said {pattern}: {text[-2000:]}")


def children(pid: int) -> list[int]:
    """Processes that a process has forked."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def tree_cpu_s(pid: int) -> float:
    """The same of a process and those that it has forked."""
    return cpu_s(pid) + sum(map(cpu_s, children(pid)))


def own_mb(pid: int) -> float:
    """Memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


if __name__ == "__main__":
    main()
