"""Serves the metrics of runs over HTTP: GET /metrics, and nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from common.access.credentials import is_loopback
from common.errors import ConfigError
from common.live.view import RunView
from fedserver.metrics.family import CONTENT_TYPE
from fedserver.metrics.text import refreshed

PATH = "/metrics"
REQUEST_S = 10.0
"""How long a request may take to come."""
FRESH_S = 1.0
"""Scrapes that follow each other more closely get the same text."""


class Metrics:
    """The text of some runs; one thread at a time looks at them."""

    def __init__(self, run_dirs: Sequence[Path]) -> None:
        # Events are not told; one is as few as can be kept.
        self._views = [RunView(path, events=1) for path in run_dirs]
        self._lock = threading.Lock()
        self._made: tuple[float, bytes] | None = None

    def text(self) -> bytes:
        """As it is now, or was a moment ago."""
        with self._lock:
            if self._made is None or time.monotonic() >= self._made[0] + FRESH_S:
                self._made = time.monotonic(), refreshed(self._views)
            return self._made[1]


def listen(flag: str, address: str, *, insecure: bool) -> socket.socket:
    """A socket at HOST:PORT; names of clients are not for other machines unless that is said."""
    if not (is_loopback(address) or insecure):
        raise ConfigError(
            f"{flag} {address} can be reached from other machines, and nothing is encrypted; "
            "listen on 127.0.0.1, or say --insecure"
        )
    host, _, port = address.rpartition(":")
    try:
        family, _, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family)
    except OSError as error:
        raise ConfigError(
            f"{flag} {address}: cannot listen there ({error.strerror}); choose another, or port 0 for any"
        ) from error


def serve(listening: socket.socket, run_dirs: Sequence[Path]) -> None:
    """Answers for as long as the process lives, in threads of their own."""
    metrics = Metrics(run_dirs)

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == PATH
            body = metrics.text() if found else f"the metrics are at {PATH}\n".encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """A scrape is no event."""

    server = ThreadingHTTPServer(listening.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    threading.Thread(target=server.serve_forever, daemon=True).start()
