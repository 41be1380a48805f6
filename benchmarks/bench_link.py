"""Does the time that fedlab predicts for a link speed hold on a real slow link?

fedlab says that a round takes the training of its slowest client and the bytes of one client, down and up, at
the speed of the link. Here rounds of real federations are timed twice: on links that the kernel shapes, each
client in a network namespace of its own, and on loopback with `fedclient run --uplink --downlink`. Takes two
or three minutes; needs root and iproute2:

    sudo .venv/bin/python benchmarks/bench_link.py --rate 1mbit --rounds 3
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from common.bit_rate import bits_per_second
from common.errors import ConfigError, FedError, RunError
from fedlab.processes import children
from fedlab.reports.runs import Run, read_run
from measure import report

METHODS = {
    "FedAvg": "--algorithm fedavg",
    "FedPVR": "--algorithm fedpvr",
    "SCAFFOLD": "--algorithm scaffold",
    "FedPVR derived": "--algorithm fedpvr --variates derived",
    "FedPVR derived int8": "--algorithm fedpvr --variates derived --codec int8",
}
TASK = "--model cnn --dataset digits --local-steps 2 --eval-every 0"
"""153 KB each way for FedAvg, and hardly any training."""
NUM_CLIENTS = 2
SERVER_HOST = "10.77.0.1"
MIN_BURST_BYTES = 4096
BURST_S = 0.01
"""What a link lets through at once, as time: little, because a transfer begins with it for free."""
PROBE_S = 4.0
RIGHT_RATE = (0.85, 1.05)
"""What a plain TCP stream may get of the rate; its headers take 5 %."""
START_S = 60.0
POLL_S = 0.05
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Site:
    """Where the processes of a federation live."""

    host: str
    server: str | None
    """A network namespace, or None for the machine's own."""
    clients: tuple[str | None, ...]
    client_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """What came out for one method, per round."""

    method: str
    down_bytes: float
    up_bytes: float
    predicted_s: float
    on_link_s: float
    paced_s: float


def main() -> None:
    """Measures and prints."""
    parser = report.parser(__doc__)
    parser.add_argument("--rate", default="1mbit", help="speed of every link, each way (default: 1mbit)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every run (default: 3)")
    arguments = parser.parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    for number in STOPPING:
        signal.signal(number, _stop)
    try:
        _require_means()
        if arguments.rounds < 1:
            raise ConfigError(f"--rounds must be at least 1, got {arguments.rounds}")
        bits = bits_per_second("--rate", arguments.rate)
        with tempfile.TemporaryDirectory(prefix="bench-link-") as folder, shaped_links(bits) as links:
            # Clients wait for a core with all others that share this folder; those of other runs stay out.
            os.environ["TMPDIR"] = folder
            measure(found, links, bits, 1 if arguments.quick else arguments.rounds, Path(folder))
        found.finish()
    except FedError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error


def measure(found: report.Report, links: Site, bits: float, rounds: int, folder: Path) -> None:
    """Runs all methods in both ways."""
    down, up = achieved(links, bits)
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    found.row("links", Mbit_per_s=bits / 1e6, TCP=control, down_alone=down / bits, up_alone=up / bits)
    if not all(RIGHT_RATE[0] <= got / bits <= RIGHT_RATE[1] for got in (down, up)):
        raise RunError(f"the links are not shaped to {bits:.0f} bit/s; this kernel's tbf cannot be used")
    rate = f"{bits:.0f}bit"
    flags = ("--uplink", rate, "--downlink", rate)
    loopback = Site("127.0.0.1", None, (None,) * NUM_CLIENTS, flags)
    for number, (method, chosen) in enumerate(METHODS.items()):
        settings = f"{TASK} {chosen} --rounds {rounds} --num-clients {NUM_CLIENTS}".split()
        on_link = federate(links, settings, folder / f"link-{number}")
        paced = federate(loopback, settings, folder / f"paced-{number}")
        _add(found, _row(method, on_link, paced, bits))


def _row(method: str, on_link: Run, paced: Run, bits: float) -> Row:
    updates = on_link.exchanges()
    down = sum(record.bytes.down.total for record in on_link.rounds) / updates
    up = sum(record.bytes.up.total for record in on_link.rounds) / updates
    # Only the last round is evaluated, so this is the time of all of them.
    predicted = on_link.accuracy_over("seconds", bits)[0][-1] / len(on_link.rounds)
    return Row(method, down, up, predicted, on_link.seconds_per_round(), paced.seconds_per_round())


def _add(found: report.Report, row: Row) -> None:
    found.row(
        "per client and round",
        method=row.method,
        down_bytes=row.down_bytes,
        up_bytes=row.up_bytes,
        predicted_s=row.predicted_s,
        on_link_s=row.on_link_s,
        paced_s=row.paced_s,
    )
    found.ratio(f"{row.method}, on a link / predicted", row.on_link_s / row.predicted_s)
    found.ratio(f"{row.method}, paced / predicted", row.paced_s / row.predicted_s)


def federate(site: Site, settings: Sequence[str], run_dir: Path) -> Run:
    """Runs one federation to its end."""
    run_dir.mkdir()
    processes: dict[Path, subprocess.Popen[bytes]] = {}

    def start(name: str, program: str, flags: Sequence[str], namespace: str | None) -> Path:
        log = run_dir / f"{name}.log"
        with inside(namespace) if namespace is not None else nullcontext():
            processes[log] = children.start(program, ["run", *flags], log)
        return log

    with ExitStack() as stack:
        stack.callback(_undisturbed(lambda: children.stop(processes.values())))
        listen = ["--listen", f"{site.host}:0", "--insecure", "--run-dir", str(run_dir)]
        log = start("server", "fedserver", [*listen, *settings], site.server)
        address = _address(log, processes)
        for i, namespace in enumerate(site.clients):
            state = ["--name", f"client-{i}", "--state-dir", str(run_dir / f"state-{i}")]
            start(
                f"client-{i}",
                "fedclient",
                ["--server", address, "--insecure", *state, *site.client_flags],
                namespace,
            )
        while _running(processes):
            time.sleep(POLL_S)
    return read_run(run_dir)


def _address(log: Path, processes: dict[Path, subprocess.Popen[bytes]]) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and _running(processes):
        found = re.search(r"listening on (\S+)\n", log.read_text())
        if found:
            return found[1]
        time.sleep(POLL_S)
    raise RunError(f"the server did not start within {START_S:.0f} s: {children.last_line(log)}")


def _running(processes: dict[Path, subprocess.Popen[bytes]]) -> bool:
    for log, process in processes.items():
        if process.poll():
            line = children.last_line(log)
            raise RunError(f"{log.stem} ended with code {process.returncode}: {line}")
    return any(process.poll() is None for process in processes.values())


@contextmanager
def shaped_links(bits: float) -> Iterator[Site]:
    """A namespace for the server and one for every client, a slow link to each; nothing of it stays."""
    server = f"bench-{os.getpid()}-server"
    clients = tuple(f"bench-{os.getpid()}-client-{i}" for i in range(NUM_CLIENTS))
    try:
        for namespace in (server, *clients):
            _do(f"ip netns add {namespace}")
            _do(f"ip -n {namespace} link set lo up")
        for i, client in enumerate(clients):
            _connect(server, client, i, bits)
        yield Site(SERVER_HOST, server, clients)
    finally:
        _undisturbed(lambda: _remove((server, *clients)))()


def _connect(server: str, client: str, i: int, bits: float) -> None:
    """One link; what leaves at either end is shaped, so that both directions are."""
    host = f"10.77.0.{2 + i}"
    _do(f"ip link add to-{i} netns {server} type veth peer name uplink netns {client}")
    for namespace, device, here, there in (
        (server, f"to-{i}", SERVER_HOST, host),
        (client, "uplink", host, SERVER_HOST),
    ):
        _do(f"ip -n {namespace} address add {here} peer {there} dev {device}")
        # No packets of 64 KB, which no real link has and which a small burst would not let pass.
        _do(f"ip -n {namespace} link set dev {device} gso_max_segs 1 up")
        burst = max(MIN_BURST_BYTES, round(bits / 8 * BURST_S))
        shape = f"tbf rate {bits:.0f}bit burst {burst} latency 400ms"
        _do(f"tc -n {namespace} qdisc add dev {device} root {shape}")


def _remove(namespaces: Sequence[str]) -> None:
    """Takes the links along, which are nowhere else. One that cannot be removed does not keep the others."""
    failures = []
    for namespace in namespaces:
        try:
            if Path("/run/netns", namespace).exists():
                _do(f"ip netns delete {namespace}")
        except RunError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _do(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{command}: {done.stderr.strip() or f'ended with code {done.returncode}'}")


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """What is started or opened in the block belongs to a network namespace, as with `ip netns exec`."""
    with Path("/proc/thread-self/ns/net").open() as home, Path("/run/netns", namespace).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):
        raise RunError(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")


def achieved(links: Site, bits: float) -> tuple[float, float]:
    """Bits per second of a plain TCP stream, down and up."""
    assert links.server is not None
    assert links.clients[0] is not None
    with ExitStack() as stack:
        with inside(links.server):
            listener = stack.enter_context(socket.create_server((links.host, 0)))
        with inside(links.clients[0]):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
        server = stack.enter_context(listener.accept()[0])
        num_bytes = round(PROBE_S * bits / 8)
        return _goodput(server, client, num_bytes), _goodput(client, server, num_bytes)


def _goodput(source: socket.socket, sink: socket.socket, num_bytes: int) -> float:
    """Bits per second from the first bytes that come to the last."""
    source.setblocking(False)
    unsent, missing, started = memoryview(bytes(num_bytes)), num_bytes, 0.0
    while missing:
        readable, writable, _ = select.select([sink], [source] if unsent else [], [], START_S)
        if not readable and not writable:
            raise RunError(f"nothing passed a link for {START_S:.0f} s")
        if writable:
            unsent = unsent[source.send(unsent) :]
        if readable:
            started = started or time.monotonic()
            missing -= len(sink.recv(missing))
    return 8 * num_bytes / (time.monotonic() - started)


def _undisturbed(work: Callable[[], None]) -> Callable[[], None]:
    """The same work, during which signals have to wait: nothing is left behind half removed."""

    def shielded() -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            work()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return shielded


def _stop(number: int, _: object) -> None:
    """Unwinds, and lets no second signal disturb that."""
    for other in STOPPING:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _require_means() -> None:
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        raise RunError("this benchmark makes network namespaces: run it as root, with iproute2 installed")


if __name__ == "__main__":
    main()
