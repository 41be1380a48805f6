"""Starts the programs of a tree without an import of torch for each of them.

One process per tree imports torch and forks for every program that is asked for: as the installed command
would have made it, but for that import. Run as a file, with the tree on PYTHONPATH, it is that process; it
answers a line of JSON for each that it reads, and at the end of its input ends everything it has started.
Nothing of gRPC may be imported before a fork, because its threads would not survive one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

OURS = ("FEDSERVER_", "FEDCLIENT_", "FEDPVR_")
"""Beginnings of variables that are settings of the programs, and reach none of them here."""


class RunFailure(Exception):
    """A federation that did not come to its end. The text says why, with the last lines of a log."""


class Forker:
    """The asking side."""

    def __init__(self, tree: Path) -> None:
        self._lock = threading.Lock()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(tree)],
            cwd=tree,
            env=environment | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'proto'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever asks, who then closes this.
        )

    def start(self, program: str, arguments: list[str], log: Path) -> int:
        """The id of a new process, in the folder of its log."""
        return int(self._ask(program=program, arguments=arguments, log=str(log)))

    def code(self, pid: int) -> int | None:
        """The exit code, if it has ended."""
        found: int | None = self._ask(code=pid)
        return found

    def end(self, pid: int) -> None:
        """Ends a process and those that it has started, if they still run."""
        self._ask(end=pid)

    def _ask(self, **request: Any) -> Any:
        with self._lock, suppress(OSError, ValueError):
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        raise RunFailure("the process that starts the programs of a tree has ended; its last words are above")

    def close(self) -> None:
        """Ends it and everything it has started."""
        with self._lock, suppress(OSError), self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


class _Children:
    """The answering side: what has been started, by process id, with the exit codes."""

    def __init__(self, programs: dict[str, str]) -> None:
        self._programs = programs
        self._codes: dict[int, int | None] = {}

    def answer(self, request: dict[str, Any]) -> int | None:
        """Does what a line asks for."""
        if "program" in request:
            return self._start(**request)
        if "end" in request:
            self._end(request["end"])
            return None
        return self._look(request["code"])

    def end_all(self) -> None:
        """Ends what still runs."""
        for pid in self._codes:
            self._end(pid)

    def _start(self, program: str, arguments: list[str], log: str) -> int:
        pid = os.fork()
        if pid == 0:
            _become(self._programs[program], [program, *arguments], Path(log))
        with suppress(OSError):  # Both sides do it, so that it is done whoever comes first.
            os.setpgid(pid, pid)
        self._codes[pid] = None
        return pid

    def _look(self, pid: int) -> int | None:
        gone = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self._codes[pid] is None and os.waitid(os.P_PID, pid, gone) is not None:
            self._end(pid)
        return self._codes[pid]

    def _end(self, pid: int) -> None:
        """Ends a process with its group; its id cannot be another's as long as it is not waited for."""
        if self._codes[pid] is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(entry: str, argv: list[str], log: Path) -> None:
    """Turns a forked process into a program. Never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(log.parent)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for target in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), target)
        sys.argv = argv
        module, _, function = entry.partition(":")
        try:
            getattr(importlib.import_module(module), function)()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _programs(tree: Path) -> dict[str, str]:
    """The programs of a tree by name, as module:function, after making sure that they are its own."""
    scripts: dict[str, str] = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["scripts"]
    for entry in scripts.values():
        importlib.import_module(entry.partition(":")[0])
    for name in {entry.partition(".")[0] for entry in scripts.values()} | {"common"}:
        found = importlib.import_module(name).__file__
        if found is None or not Path(found).is_relative_to(tree):
            raise SystemExit(f"{name} of {tree} would be imported from {found}")
    if "grpc" in sys.modules:
        raise SystemExit(f"the command lines of {tree} import gRPC before they need it")
    return scripts


def main() -> None:
    """Answers until nobody asks any more."""
    import torch

    torch.set_num_threads(1)
    children = _Children(_programs(Path(sys.argv[1])))
    try:
        for line in sys.stdin:
            print(json.dumps(children.answer(json.loads(line))), flush=True)
    finally:
        children.end_all()


if __name__ == "__main__":
    main()
