"""Does the suite fail by luck? python -m tests.calm RUNS BUSY COMMAND... runs a command again and again.

BUSY of the runs have a busy loop for every core beside them, so that everything takes longer and comes in
another order. Prints for each run its exit code, its seconds, the seconds of all its processes on a core, and
how many processes it left behind; the output of one that failed stays in a file. The exit code is 0 if no run
failed and none left anything behind.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 1800
"""A run that takes longer is ended. Busy loops end by themselves after as long, whatever becomes of us."""
POLL_S = 0.2
GRACE_S = 10.0
"""Processes that outlive a run get this long to end by themselves."""
_PR_SET_CHILD_SUBREAPER = 36
_LOOP = f"import time; end = time.monotonic() + {LIMIT_S}\nwhile time.monotonic() < end: pass"


@dataclass(frozen=True)
class Result:
    """How a run went."""

    code: int
    seconds: float
    cpu_seconds: float
    left_behind: int


def main() -> None:
    """Runs and prints."""
    runs, num_busy, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    # Processes whose parents have ended come to this one: they are counted, and none is lost.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    folder = Path(tempfile.mkdtemp(prefix="fedpvr-calm-"))
    failed = 0
    print(" run  beside       code  seconds  on cores  left behind", flush=True)
    for k in range(runs):
        busy = (k + 1) * num_busy // runs > k * num_busy // runs  # Spread over the runs.
        output = folder / f"run-{k + 1}.log"
        with _busy_loops(os.cpu_count() or 1 if busy else 0) as loops:
            result = _run(command, output, loops)
        beside = "busy loops" if busy else "nothing"
        numbers = f"{result.code:4} {result.seconds:8.1f} {result.cpu_seconds:9.1f} {result.left_behind:12}"
        print(f"{k + 1:4}  {beside:11} {numbers}", flush=True)
        if result.code == 0 and result.left_behind == 0:
            output.unlink()
        else:
            failed += 1
            print(f"      its output is in {output}", flush=True)
    print(f"{runs - failed} of {runs} runs ended well")
    sys.exit(failed > 0)


@contextmanager
def _busy_loops(number: int) -> Iterator[set[int]]:
    """Loops that take time from others while the block runs; gives their process ids."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(number)]
    try:
        yield {loop.pid for loop in loops}
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _run(command: list[str], output: Path, others: set[int]) -> Result:
    """One run, with its output in a file; `others` are children that do not belong to it."""
    before, started = _cpu_seconds(), time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    while process.poll() is None and time.monotonic() < started + LIMIT_S:
        _running(others | {process.pid})
        time.sleep(POLL_S)
    process.kill()
    code, seconds = process.wait(), time.monotonic() - started
    ended = time.monotonic()
    while (left := _running(others)) and time.monotonic() < ended + GRACE_S:
        time.sleep(POLL_S)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return Result(code, seconds, _cpu_seconds() - before, len(left))


def _running(others: set[int]) -> set[int]:
    """Processes of a run that have come to this one and still run; those that have ended are let go."""
    return {pid for pid in _children() - others if os.waitpid(pid, os.WNOHANG) == (0, 0)}


def _children() -> set[int]:
    pid = os.getpid()
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _cpu_seconds() -> float:
    """Of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
