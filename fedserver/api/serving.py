"""A server that a program starts beside itself, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Unpack

from common.access import cli as access_cli
from common.errors import ConfigError, DivergedError, ExitCode, FedError, RunError
from common.events import Emit, unheard
from fedserver.api.heard import heard
from fedserver.api.settings import Settings, configured, flags

STOP_S = 10.0
"""How long a server gets to end by itself once it is asked to."""


def serve(
    *,
    listen: str = "127.0.0.1:0",
    run_dir: str | Path | None = None,
    model: str | None = None,
    dataset: str | None = None,
    certs: str | Path | None = None,
    tokens: str | Path | None = None,
    insecure: bool = False,
    capture: str | Path | None = None,
    resume: bool = True,
    on_event: Emit = unheard,
    **settings: Unpack[Settings],
) -> Server:
    """Starts `fedserver run` with these settings and returns once it listens.

    It is a process of its own, so that nothing of it stays in this one: no signal handlers, no threads of
    torch, no event loop. Model and data set are names therefore. `on_event` is called in a thread.
    """
    config = configured(settings, model=model, dataset=dataset)
    access_cli.require_address("--listen", listen)
    folder = Path(run_dir) if run_dir is not None else None
    path = folder or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.algorithm}"
    given = [f"--listen={listen}", f"--run-dir={path}", "--resume" if resume else "--no-resume"]
    for name, value in (("certs", certs), ("tokens", tokens), ("capture", capture)):
        given += [f"--{name}={value}"] if value is not None else []
    given += ["--insecure"] if insecure else []
    return Server([*given, *flags(config)], path, on_event)


class Server:
    """A running server. Leaving a `with` block stops it, unless it has ended by itself."""

    def __init__(self, arguments: list[str], run_dir: Path, on_event: Emit) -> None:
        self.run_dir = run_dir
        self.address = ""
        """HOST:PORT for clients."""
        self._emit = on_event
        self._last = "it said nothing"
        self._failure: Exception | None = None
        self._listening = threading.Event()
        command = [sys.executable, "-P", "-m", "fedserver.api.child", str(os.getpid()), *arguments]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FEDSERVER_")}
        self._process = subprocess.Popen(
            [*command, "--log-format=json", "--verbose"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=inherited,
            start_new_session=True,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="fedserver", daemon=True)
        self._reader.start()
        try:
            self._listening.wait()
        except BaseException:
            self.stop()
            raise
        if not self.address:
            self.wait()
            raise RunError(f"the server ended before it listened: {self._last}")

    def _read(self) -> None:
        assert self._process.stdout is not None, "it was asked for"
        with self._process.stdout as lines:
            for line in lines:
                event = heard(line)
                if event is None:
                    self._last = line.strip() or self._last
                    continue
                if event.kind == "listening":
                    self.address = str(event.more["address"])
                    self._listening.set()
                try:
                    self._emit(event)
                except Exception as error:  # The caller's own code: it hears of it when it waits.
                    self._failure, self._emit = error, unheard
                    self._process.terminate()
        self._process.wait()
        self._listening.set()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits for the end of the run; raises what ended it early. Ctrl-C while waiting stops the server."""
        try:
            self._reader.join(timeout_s)
        except KeyboardInterrupt:
            self.stop()
            raise
        if self._reader.is_alive():
            raise TimeoutError(f"the server at {self.address} has not ended after {timeout_s} s")
        if self._failure is not None:
            raise self._failure
        if self._process.returncode:
            kinds: dict[int, type[FedError]] = {ExitCode.USAGE: ConfigError, ExitCode.DIVERGED: DivergedError}
            raise kinds.get(self._process.returncode, RunError)(self._last.removeprefix("Error: "))

    def stop(self) -> None:
        """Asks it to end, with its state saved, and waits for that; the same settings go on from there."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reader.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Server({self.address!r}, {'running' if self.running else 'ended'}, {str(self.run_dir)!r})"
