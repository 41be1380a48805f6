"""What does moving VGG-11 to and from clients cost, against raw gRPC, raw TCP and memcpy?

Client processes pull at the same moment, and then push at the same moment: real clients and a real server
that checks, stores and folds, closes the round and writes its checkpoint; and, with the same grpcio, clients
and a server that move as many raw bytes and do nothing with them. All of them take turns, on one machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol, TypeVar

import numpy as np

from fedlab.processes import children
from lockstep.crew import Crew
from measure import processes, report
from measure.federation import ServerProcess, scratch, settings
from measure.timing import best_seconds

VGG11_BYTES = 39_003_688
MIB = 1 << 20
ROUNDS = 10
WARM_UP = 3
"""Rounds that do not count: a virtual machine may get pages only when they are used for the first time."""
T = TypeVar("T")


@dataclass(frozen=True)
class Moved:
    """One direction for all clients at once."""

    wall_s: float
    cpu_s: float
    """Server and clients."""


class Way(Protocol):
    """A server and its clients, and what they have taken so far."""

    num_clients: int
    moved: dict[str, list[Moved]]
    """By direction: down and up; with a real server also `closed`: up, until the round is closed."""

    def step(self) -> None:
        """Down once and up once, for all clients."""

    def close(self) -> None:
        """Ends the processes."""


class Raw:
    """Raw bytes, over gRPC or TCP."""

    def __init__(self, kind: str, chunk: int, size: int, num_clients: int, folder: Path) -> None:
        self.num_clients = num_clients
        self.moved: dict[str, list[Moved]] = {"down": [], "up": []}
        size = size // chunk * chunk
        here = Path(__file__).parent
        words = [str(number) for number in (chunk, size)]
        self._server = subprocess.Popen(
            [sys.executable, str(here / "lockstep" / "raw_server.py"), kind, *words],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(here)},
        )
        assert self._server.stdout is not None
        port = self._server.stdout.readline().decode().strip()
        self._crew = Crew("raw_client.py", [kind, port, *words], num_clients, folder)

    def step(self) -> None:
        """Down once and up once."""
        for direction, moved in self.moved.items():
            self._crew.wait(direction)
            before = processes.exact_cpu_seconds(self._server.pid)
            phase = self._crew.go(direction)
            cpu = processes.exact_cpu_seconds(self._server.pid) - before
            moved.append(Moved(phase.wall_s, phase.cpu_s + cpu))

    def close(self) -> None:
        """Ends the processes."""
        self._crew.close()
        children.stop([self._server])
        assert self._server.stdout is not None
        self._server.stdout.close()


class Ours:
    """A real federation, one step at a time."""

    def __init__(self, model: str, num_clients: int, rounds: int, folder: Path) -> None:
        self.num_clients = num_clients
        self.moved: dict[str, list[Moved]] = {"down": [], "up": [], "closed": []}
        self.steps: list[float] = []
        """Seconds of the step of each round."""
        self._round = 0
        self._records = folder / "run" / "rounds.jsonl"
        folder.mkdir()
        (folder / "still.py").write_bytes((folder.parent / "still.py").read_bytes())
        flags = settings(model, num_clients, rounds, "fedavg", folder)
        self._server = ServerProcess([*flags, "--run-dir", "run"], folder)
        address = self._server.wait_for("listening")[1]["address"]
        self._crew = Crew("timed_client.py", [address, model], num_clients, folder)

    def step(self) -> None:
        """One round."""
        self._round += 1
        self._phase("down")
        self._crew.wait("train")
        self._crew.go("train")
        began = self._phase("up")
        up, after = self.moved["up"][-1], processes.exact_cpu_seconds(self._server.pid)
        closed = self._server.wait_for("round_closed", round=self._round)[0]
        more = processes.exact_cpu_seconds(self._server.pid) - after
        self.steps.append(json.loads(self._records.read_bytes().splitlines()[-1])["seconds"]["step"])
        self.moved["closed"].append(Moved(max(closed - began, up.wall_s), up.cpu_s + more))

    def _phase(self, direction: str) -> float:
        """Returns when it began."""
        self._crew.wait(direction)
        before = processes.exact_cpu_seconds(self._server.pid)
        began = time.perf_counter()
        phase = self._crew.go(direction)
        cpu = processes.exact_cpu_seconds(self._server.pid) - before
        self.moved[direction].append(Moved(phase.wall_s, phase.cpu_s + cpu))
        return began

    def close(self) -> None:
        """Ends the processes."""
        self._crew.close()
        self._server.close()


def main() -> None:
    """Measures and prints."""
    arguments = report.parser(__doc__).parse_args()
    found = report.Report.asked_for(arguments, __doc__)
    model, size, rounds = ("idle", 40_000, 2) if arguments.quick else ("vgg11", VGG11_BYTES, ROUNDS)
    chunks = {"1 MiB": min(MIB, size), "2 MiB": min(2 * MIB, size)}
    crowd = (2,) if arguments.quick else (2, 10)
    federations: dict[int, Ours] = {}
    with scratch() as folder, ExitStack() as stack:
        ways: dict[str, Way] = {"raw TCP, 1": Raw("tcp", 1, size, 1, folder)}
        stack.callback(lambda: _close(ways))
        for num_clients in (1, *crowd):
            for name, chunk in chunks.items():
                ways[f"raw gRPC, {name}, {num_clients}"] = Raw("grpc", chunk, size, num_clients, folder)
        for num_clients in crowd:
            ours = Ours(model, num_clients, rounds, folder / f"ours-{num_clients}")
            ways[f"ours, {num_clients}"] = federations[num_clients] = ours
        for _ in range(rounds):
            for way in ways.values():
                way.step()
    memcpy = _memcpy(size)
    found.row("transfers", way="memcpy", direction="", ms=memcpy * 1e3, GB_per_s=size / memcpy / 1e9)
    for name, way in ways.items():
        for direction in way.moved:
            _add(found, name, way, direction, size)
    _ratios(found, ways, federations)
    found.finish()


def _close(ways: dict[str, Way]) -> None:
    for way in ways.values():
        way.close()


def _memcpy(size: int) -> float:
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    return best_seconds(lambda: np.copyto(target, source))


def _add(found: report.Report, name: str, way: Way, direction: str, size: int) -> None:
    wall = _wall(way, direction)
    found.row(
        "transfers",
        way=name,
        direction=direction,
        ms=wall * 1e3,
        GB_per_s=size * way.num_clients / wall / 1e9,
        cpu_ms_per_transfer=_cpu(way, direction) * 1e3,
    )


def _wall(way: Way, direction: str) -> float:
    """Median seconds for all clients."""
    return median(phase.wall_s for phase in _warm(way.moved[direction]))


def _cpu(way: Way, direction: str) -> float:
    """Median processor seconds of both sides for one transfer."""
    return median(phase.cpu_s for phase in _warm(way.moved[direction])) / way.num_clients


def _warm(rounds: list[T]) -> list[T]:
    return rounds[min(WARM_UP, len(rounds) - 1) :]


def _ratios(found: report.Report, ways: dict[str, Way], federations: dict[int, Ours]) -> None:
    raw = [way for name, way in ways.items() if name.startswith("raw gRPC")]
    best = min(_cpu(way, direction) for way in raw for direction in way.moved)
    for num_clients, ours in federations.items():
        both = (_cpu(ours, "down") + _cpu(ours, "closed")) / 2
        what = f"CPU per transfer, {num_clients} clients, with fold and checkpoint / best raw gRPC"
        # With few clients most of it is the checkpoint, which is written once a round.
        found.ratio(what, both / best, at_most=2.0 if num_clients == 10 else None)
    many, ours = max(federations.items())
    down, up = (min(_wall(way, d) for way in raw if way.num_clients == many) for d in ("down", "up"))
    folded = _wall(ours, "up") + median(_warm(ours.steps))
    what = f"{many} clients / what raw gRPC moves a second"
    found.ratio(f"broadcast to {what}", down / _wall(ours, "down"), at_least=0.85)
    found.ratio(f"fan-in with fold of {what}", up / folded, at_least=0.6)
    found.ratio(f"fan-in with fold and checkpoint of {what}", up / _wall(ours, "closed"), at_least=0.6)
    found.ratio(f"fan-in until the last answer of {what}", up / _wall(ours, "up"))


if __name__ == "__main__":
    main()
