"""A TCP proxy between client and server that does to connections what bad networks do."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

STALL_S = 3600.0
LARGE = 4096
"""Segments from this size on carry tensors for the most part."""


@dataclass
class Faults:
    """What goes wrong, some times, once so many bytes have passed in a direction."""

    kind: str
    """drop, delay, truncate, duplicate, corrupt or half-open."""
    after: int
    up: bool
    times: int = 1
    random: random.Random = field(default_factory=lambda: random.Random(0))
    done: int = 0

    def __post_init__(self) -> None:
        self._left = self.after
        self._lock = threading.Lock()

    def due(self, data: bytes, up: bool) -> bool:
        """Whether this is the segment to which it happens."""
        if up != self.up:
            return False
        with self._lock:
            self._left -= len(data)
            small = self.kind in ("duplicate", "corrupt") and len(data) < LARGE
            if self.done == self.times or self._left >= 0 or small:
                return False
            self.done += 1
            self._left = self.after
            return True

    def apply(self, data: bytes, send: Callable[[bytes], None]) -> bool:
        """Does it; returns whether the connection goes on."""
        match self.kind:
            case "delay":
                time.sleep(1.0)
                send(data)
            case "truncate":
                send(data[: self.random.randrange(len(data))])
                return False
            case "duplicate":
                send(data + data)
            case "corrupt":
                at = self.random.randrange(len(data))
                send(data[:at] + bytes([data[at] ^ self.random.randrange(1, 256)]) + data[at + 1 :])
            case "half-open":
                time.sleep(STALL_S)
            case "drop":
                return False
            case other:
                raise ValueError(other)
        return True


class Proxy:
    """Forwards connections, with faults."""

    def __init__(self, server: str, faults: Faults) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self.faults = faults
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            for source, target, up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._forward, args=(source, target, up), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.faults.due(data, up):
                    target.sendall(data)
                elif not self.faults.apply(data, target.sendall):
                    break
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
