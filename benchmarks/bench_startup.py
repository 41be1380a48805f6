"""How long does it take until a command answers, and until the first round is closed, against `import torch`?

All processes are started as users start them, cold but for the disk's cache. Times are from the start of the
first process.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from statistics import median

from fedlab.processes import children
from measure import report
from measure.federation import FederationFailure, ServerProcess, client_flags, scratch, settings

TORCH = ("-c", "import torch")
PROGRAMS = ("fedserver", "fedclient", "fedlab", "fedwire")
Clients = Callable[[str, int, str], list[list[str]]]
"""From model, number and address to the arguments of each process of theirs."""


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    repeats = 1 if arguments.quick else 3
    torch = _usual(TORCH, repeats)
    found.row("until a command has ended", what="import torch", seconds=torch, ratio=1.0)
    for program in PROGRAMS[:1] if arguments.quick else PROGRAMS:
        seconds = _usual(["-P", "-m", program, "--help"], repeats)
        found.row(
            "until a command has ended", what=f"{program} --help", seconds=seconds, ratio=seconds / torch
        )
    for program, line in (("fedserver", _server_line), ("fedclient", _client_line)):
        seconds = median(line() for _ in range(repeats))
        found.row("until the first line", what=f"{program} run", seconds=seconds, ratio=seconds / torch)
        found.ratio(f"first line of {program} run / import torch", seconds / torch)
    if not arguments.quick:
        _first_rounds(found)
    found.finish()


def _usual(command: Sequence[str], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return median(times)


def _server_line() -> float:
    with scratch() as folder:
        flags = settings("idle", 2, 1, "fedavg", folder)
        with closing(ServerProcess([*flags, "--run-dir", "run"], folder)) as server:
            return server.wait_for("listening")[0] - server.started


def _client_line() -> float:
    """Of a client whose server is not there yet."""
    with scratch() as folder:
        start = time.perf_counter()
        flags = client_flags("idle", 0, "127.0.0.1:9")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedclient", *flags], cwd=folder, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        took = time.perf_counter() - start
        children.stop([process])
        process.stdout.close()
        return took


def _first_rounds(found: report.Report) -> None:
    """Until the first round of the 4 KB model is closed, with clients that are started beside the server."""
    ways: dict[str, Clients] = {"a process each": _each}
    if _has_replicas():
        ways["--replicas"] = _replicas
    for way, clients in ways.items():
        for num_clients in (2, 10):
            # In turn, because what disturbs one should disturb the other.
            pairs = [(_usual(TORCH, 1), first_round("idle", num_clients, clients)) for _ in range(2)]
            torch, seconds = (median(column) for column in zip(*pairs, strict=True))
            found.row(
                "until the first round is closed",
                clients=num_clients,
                how=way,
                seconds=seconds,
                import_torch_s=torch,
                ratio=seconds / torch,
            )
            limit = 3.0 if way == "--replicas" and num_clients == 10 else None
            what = f"first round, {num_clients} clients, {way} / import torch"
            found.ratio(what, seconds / torch, at_most=limit)


def _has_replicas() -> bool:
    text = subprocess.run(
        [sys.executable, "-P", "-m", "fedclient", "run", "--help"], check=True, capture_output=True, text=True
    ).stdout
    return "--replicas" in text


def _each(model: str, num_clients: int, address: str) -> list[list[str]]:
    return [client_flags(model, i, address) for i in range(num_clients)]


def _replicas(model: str, num_clients: int, address: str) -> list[list[str]]:
    """One process that makes all of them; it names them itself."""
    where = ["--server", address, "--name", "site", "--replicas", str(num_clients), "--state-dir", "state"]
    return [["run", *where, "--allow-plugin", f"still:{model}", "--allow-plugin", "still:data"]]


def first_round(model: str, num_clients: int, clients: Clients | None = None) -> float:
    """Seconds until the first round is closed, all started at once; by default a process for each client."""
    with scratch() as folder, ExitStack() as stack:
        flags = settings(model, num_clients, 1, "fedavg", folder)
        port = _free_port()
        flags[flags.index("--listen") + 1] = f"127.0.0.1:{port}"
        server = stack.enter_context(closing(ServerProcess([*flags, "--run-dir", "run"], folder)))
        started = []
        for number, arguments in enumerate((clients or _each)(model, num_clients, f"127.0.0.1:{port}")):
            log = stack.enter_context((folder / f"client-{number}.log").open("wb"))
            started.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "fedclient", *arguments],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
        stack.callback(children.stop, started)
        try:
            return server.wait_for("round_closed", round=1)[0] - server.started
        except FederationFailure as failure:
            raise SystemExit(f"{failure}; {children.last_line(folder / 'client-0.log')}") from failure


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


if __name__ == "__main__":
    main()
