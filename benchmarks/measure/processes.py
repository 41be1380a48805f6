"""What the kernel says of processes: processor time and memory."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.02


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM unwinds the block, so that what was started in it is ended too."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def environment(paths: Iterable[Path]) -> dict[str, str]:
    """Of a process that imports from these folders before any others."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of processes so far, and of those of their children that have ended."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) * _TICK_S
    return total


def exact_cpu_seconds(pid: int) -> float:
    """Processor time of the threads that a process has now, to the microsecond."""
    total = 0
    for task in _listed(Path(f"/proc/{pid}/task")):
        with suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have started."""
    found = []
    for task in _listed(Path(f"/proc/{pid}/task")):
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def memory_mb(pid: int, field: str) -> float:
    """A line of /proc/PID/status: RssAnon, VmRSS or VmHWM; 0 for a process that is not there."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def shared_out_mb(pid: int) -> float:
    """Memory of a process, with what it shares divided by those who share it (Pss)."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


class PeakMemory:
    """Looks every now and then how much memory processes have, and keeps the most of each sum."""

    def __init__(self, measures: dict[str, Callable[[], float]], every_s: float = SAMPLE_S) -> None:
        """`measures` are looked at by name."""
        self.peak_mb = dict.fromkeys(measures, 0.0)
        self._measures = measures
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(self._every_s):
            for name, measure in self._measures.items():
                self.peak_mb[name] = max(self.peak_mb[name], measure())
