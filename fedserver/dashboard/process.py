"""The dashboard beside a server: a process of its own, so that the rounds pay nothing for it.

The server opens the socket, so that a port in use is an error at its start; it never reads from it.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from common.errors import ConfigError
from common.records import form
from fedserver.dashboard.assignment import Assignment

BACKLOG = 128
NEEDED = ("starlette", "uvicorn")


def require_installed(flag: str) -> None:
    """Raises where the libraries are missing that only a dashboard needs."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"{flag} needs {' and '.join(missing)}, not installed here; "
            "install them with: pip install 'fedpvr[dashboard]'"
        )


def listen(flag: str, address: str) -> socket.socket:
    """A socket at HOST:PORT."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"{flag} {address}: cannot listen there ({error.strerror}); choose another, or port 0 for any"
        ) from error
    return listening


def url(listening: socket.socket, assignment: Assignment) -> str:
    """What to give a browser."""
    host, port = assignment.address.rpartition(":")[0], listening.getsockname()[1]
    return f"{'https' if assignment.encrypted else 'http'}://{host}:{port}/"


@contextmanager
def beside(assignment: Assignment, listening: socket.socket) -> Iterator[None]:
    """A dashboard that runs while the block does."""
    job = replace(assignment, parent=os.getpid())
    process = subprocess.Popen(
        _command(job, listening), pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL
    )
    listening.close()
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def become(assignment: Assignment, listening: socket.socket) -> NoReturn:
    """Makes this process the dashboard, without the libraries that a command line has loaded."""
    os.set_inheritable(listening.fileno(), True)
    sys.stdout.flush()
    os.execv(sys.executable, _command(assignment, listening))


def _command(assignment: Assignment, listening: socket.socket) -> list[str]:
    job = form.text(replace(assignment, fd=listening.fileno()))
    return [sys.executable, "-P", "-m", "fedserver.dashboard", job]
