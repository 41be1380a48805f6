"""Runs a program and says in which modules its processor time went: `sampled.py OUT fedserver run ...`.

A thread looks every few milliseconds what each thread of the process has taken since the last look, as the
kernel counts it, and puts it down to the innermost module of ours that the thread is in. Threads of gRPC that
never run Python are put down to gRPC. When the program ends, or at SIGTERM, OUT gets the seconds by module.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

from measure.machine import TREE

EVERY_S = 0.004
PACKAGES = ("common", "fedserver", "fedclient", "fedlab")
OTHER_THREADS, THREADS, LOOP = (
    "gRPC's own threads",
    "threads outside of our calls",
    "event loop and gRPC's part in it",
)


class Sampler:
    """The thread that looks."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._seconds: dict[str, float] = defaultdict(float)
        self._last: dict[int, int] = {}
        self._thread = threading.Thread(target=self._look_for_ever, daemon=True)

    def start(self) -> None:
        """From now on."""
        self._thread.start()

    def _look_for_ever(self) -> None:
        written = time.monotonic()
        while True:
            time.sleep(EVERY_S)
            self._look()
            if time.monotonic() - written > 0.25:
                written = time.monotonic()
                partial = self._out.with_suffix(".part")
                partial.write_text(json.dumps({"time": time.time(), "seconds": self._seconds}))
                partial.rename(self._out)

    def _look(self) -> None:
        frames = sys._current_frames()
        names = {t.native_id: t.ident for t in threading.enumerate()}
        own = self._thread.native_id
        for task in Path("/proc/self/task").iterdir():
            try:
                now = int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue
            number = int(task.name)
            used = now - self._last.get(number, now)
            self._last[number] = now
            if used and number != own:
                ident = names.get(number)
                frame = frames.get(ident) if ident is not None else None
                self._seconds[OTHER_THREADS if frame is None else module_of(frame)] += used / 1e9


def module_of(frame: FrameType | None) -> str:
    """The innermost module of ours that a frame is in or was called from."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(TREE):
            inner = path.relative_to(TREE)
            if inner.parts[0] in PACKAGES:
                # A command line calls nothing but the loop, or what waits for it.
                return LOOP if inner.name == "cli.py" else str(inner.with_suffix(""))
        frame = frame.f_back
    return THREADS


def main() -> None:
    """Becomes the program."""
    out, program, *arguments = sys.argv[1:]
    Sampler(Path(out).absolute()).start()
    sys.argv = [program, *arguments]
    sys.path.pop(0)
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
