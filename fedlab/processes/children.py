"""Child processes that do not outlive this one, not even if it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from common.processes.parent import end_with_parent

STOP_S = 5.0


def start(module: str, arguments: Iterable[str], log: Path) -> subprocess.Popen[bytes]:
    """Runs `python -m MODULE ...` with its output in a log.

    The child is in a session of its own, so that Ctrl-C reaches this process alone, which then ends its
    children in order.
    """
    with log.open("wb") as stream:
        return subprocess.Popen(
            command(module, arguments),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=inherited(),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )


def command(module: str, arguments: Iterable[str]) -> list[str]:
    """What runs a module that nothing in the current directory stands in for."""
    return [sys.executable, "-P", "-m", module, *arguments]


def inherited() -> dict[str, str]:
    """The environment without settings of ours."""
    ours = ("FEDSERVER_", "FEDCLIENT_", "FEDLAB_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


class Child(Protocol):
    """A child process, however it was made."""

    @property
    def returncode(self) -> int | None:
        """How it ended, once that was asked for."""

    def poll(self) -> int | None:
        """The exit code, if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end."""

    def terminate(self) -> None:
        """Asks it to end."""

    def kill(self) -> None:
        """Ends it."""


def stop(processes: Iterable[Child]) -> None:
    """Ends processes: asks first, kills what has not ended soon after."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + STOP_S
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_line(log: Path) -> str:
    """What a process said last."""
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1] if lines else "no output"
