"""Federations of real processes without training: what is left of a round is what the system itself takes.

The server is `fedserver run` with its durable checkpoint, started as users start it. The clients are
`fedclient run` with state directories of their own, forked from a process that has torch already, so that
fifty of them start in a second. Every process is ended by its id.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fedlab.processes import children
from measure import processes
from measure.machine import TREE
from tests.same_bits.forker import Forker

HERE = Path(__file__).parent
MODELS = ("idle", "cnn", "vgg11")
LIMIT_S = 120.0
ALL_ROUNDS_S = 600.0
PATHS = (TREE, TREE / "proto", HERE.parent)


@dataclass(frozen=True)
class Rounds:
    """What rounds took, without the first."""

    median_s: float
    """From one round's close to the next one's."""
    server_cpu_s: float
    """A round."""
    client_cpu_s: float
    """A round, all clients together."""
    server_anon_mb: float
    """Peak of RssAnon: the server process's own memory."""
    server_peak_mb: float
    """Peak of the resident set, mapped files included."""
    worker_peak_mb: float
    """The same of the worker, which builds and evaluates models."""
    all_server_mb: float
    """Peak of the memory of server and worker together, with what they share counted once (Pss)."""
    whole_server_mb: float
    """The same with the start and the end of the run, when the model is built and evaluated."""
    bytes_per_round: int
    first_close_s: float
    """From the start of the server to the close of the first round."""


class FederationFailure(Exception):
    """A federation that did not come to its end; the text says why."""


class ServerProcess:
    """`fedserver run`, its events with the time at which they came."""

    def __init__(
        self, flags: Sequence[str], folder: Path, program: Sequence[str] = ("-P", "-m", "fedserver", "run")
    ) -> None:
        self._events: list[tuple[float, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._ended = False
        self._errors = folder / "server.err"
        self.started = time.perf_counter()
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *program, "--log-format", "json", *flags],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=processes.environment(PATHS),
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now = time.perf_counter()
            with self._changed:
                self._events.append((now, json.loads(line)))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, kind: str, at_most_s: float = LIMIT_S, **values: Any) -> tuple[float, dict[str, Any]]:
        """The first event of a kind with these values."""
        deadline = time.monotonic() + at_most_s
        with self._changed:
            while True:
                for when, event in self._events:
                    if event["event"] == kind and values.items() <= event.items():
                        return when, event
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise FederationFailure(f"the server did not say {kind} {values}: {self.last_words()}")
                self._changed.wait(left)

    def newest(self, kind: str) -> dict[str, Any]:
        """The last event of a kind so far."""
        with self._changed:
            return next(event for _, event in reversed(self._events) if event["event"] == kind)

    def last_words(self) -> str:
        """For an error."""
        said = self._errors.read_text().splitlines()[-3:]
        return " | ".join([*(event["text"] for _, event in self._events[-3:]), *said])

    def close(self) -> None:
        """Ends it."""
        children.stop([self.process])
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder with the plug-in; clients that run here wait for a core with each other only."""
    before = os.environ.get("TMPDIR")
    with processes.ended_in_order(), tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        shutil.copy(HERE / "still.py", folder)
        os.environ["TMPDIR"] = tempfile.tempdir = name
        try:
            yield folder
        finally:
            tempfile.tempdir = None
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


def settings(model: str, num_clients: int, rounds: int, algorithm: str, folder: Path) -> list[str]:
    """Flags of `fedserver run`: each client has a shard of one example, and takes one step."""
    shards = folder / f"shards-{num_clients}.json"
    shards.write_text(json.dumps({"clients": [[i % 64] for i in range(num_clients)]}))
    task = f"--model still:{model} --dataset still:data --algorithm {algorithm} --partition {shards}"
    work = f"--rounds {rounds} --local-steps 1 --batch-size 1 --eta-l 0.001 --eval-every 0 --seed 1"
    return f"--listen 127.0.0.1:0 --num-clients {num_clients} {task} {work}".split()


def client_flags(model: str, i: int, address: str) -> list[str]:
    """Flags of `fedclient run`."""
    own = ["--server", address, "--name", f"client-{i}", "--state-dir", f"state/client-{i}"]
    return ["run", *own, "--allow-plugin", f"still:{model}", "--allow-plugin", "still:data"]


def measured(model: str, num_clients: int, rounds: int, algorithm: str = "fedavg") -> Rounds:
    """Runs a federation to its end and says what its rounds took."""
    with scratch() as folder, closing(Forker(TREE)) as forker:
        flags = settings(model, num_clients, rounds, algorithm, folder)
        with closing(ServerProcess([*flags, "--run-dir", "run"], folder)) as server:
            address = server.wait_for("listening")[1]["address"]
            clients = [
                forker.start("fedclient", client_flags(model, i, address), folder / f"client-{i}.log")
                for i in range(num_clients)
            ]
            memory = processes.PeakMemory({"anon": lambda: processes.memory_mb(server.pid, "RssAnon")})
            everything = processes.PeakMemory({"all": lambda: _all_mb(server.pid)}, every_s=0.5)
            with memory, everything:
                before = server.wait_for("round_closed", round=1)[0], *_cpu(server.pid, clients)
                with processes.PeakMemory({"all": lambda: _all_mb(server.pid)}, every_s=0.1) as during:
                    server.wait_for("round_closed", ALL_ROUNDS_S, round=rounds - 1)
                server.wait_for("round_closed", ALL_ROUNDS_S, round=rounds)
                after = _cpu(server.pid, clients)
                peak = processes.memory_mb(server.pid, "VmHWM")
                worker = max(
                    (processes.memory_mb(pid, "VmHWM") for pid in processes.descendants(server.pid)),
                    default=0.0,
                )
            closes = [server.wait_for("round_closed", round=r) for r in range(1, rounds + 1)]
            sent = closes[-1][1]
            return Rounds(
                median_s=median(b[0] - a[0] for a, b in itertools.pairwise(closes)),
                server_cpu_s=(after[0] - before[1]) / (rounds - 1),
                client_cpu_s=(after[1] - before[2]) / (rounds - 1),
                server_anon_mb=memory.peak_mb["anon"],
                server_peak_mb=peak,
                worker_peak_mb=worker,
                all_server_mb=during.peak_mb["all"],
                whole_server_mb=everything.peak_mb["all"],
                bytes_per_round=sent["down_bytes"] + sent["up_bytes"],
                first_close_s=closes[0][0] - server.started,
            )


@dataclass(frozen=True)
class Simulated:
    """What rounds of `fedlab simulate` took, without the first."""

    best_s: float
    """From one round's close to the next one's."""
    median_s: float
    cpu_s: float
    """A round."""
    anon_mb: float
    """Peak of RssAnon: the memory of server and clients, without what is in files."""
    first_close_s: float
    """From the start of the process."""


def simulated(
    model: str, num_clients: int, rounds: int, algorithm: str = "fedavg", drawn: int | None = None
) -> Simulated:
    """Runs a simulation to its end; `drawn` clients take part in each round, or all."""
    with scratch() as folder:
        flags = settings(model, num_clients, rounds, algorithm, folder)[2:]
        flags += ["--clients-per-round", str(drawn)] if drawn is not None else []
        simulate = ServerProcess([*flags, "--run-dir", "run"], folder, ("-P", "-m", "fedlab", "simulate"))
        memory = processes.PeakMemory({"anon": lambda: processes.memory_mb(simulate.pid, "RssAnon")})
        with closing(simulate), memory:
            first = simulate.wait_for("round_closed", ALL_ROUNDS_S, round=1)[0]
            before = processes.exact_cpu_seconds(simulate.pid)
            simulate.wait_for("round_closed", ALL_ROUNDS_S, round=rounds)
            cpu = processes.exact_cpu_seconds(simulate.pid) - before
            closes = [simulate.wait_for("round_closed", round=r)[0] for r in range(1, rounds + 1)]
        took = [b - a for a, b in itertools.pairwise(closes)]
        peak = memory.peak_mb["anon"]
        return Simulated(min(took), median(took), cpu / len(took), peak, first - simulate.started)


def simulation_seconds(model: str, num_clients: int, rounds: int) -> tuple[float, float]:
    """Of `fedlab simulate`: the median round without the first, and from the start to the first close."""
    found = simulated(model, num_clients, rounds)
    return found.median_s, found.first_close_s


def shapes_of(model: str) -> dict[str, tuple[int, ...]]:
    """Of the tensors that travel, by name."""
    from measure import still

    built = getattr(still, model)(10)
    return {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}


def _all_mb(server: int) -> float:
    return sum(map(processes.shared_out_mb, [server, *processes.descendants(server)]))


def _cpu(server: int, clients: Sequence[int]) -> tuple[float, float]:
    return processes.cpu_seconds([server]), processes.cpu_seconds(clients)
