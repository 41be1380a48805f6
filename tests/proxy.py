"""A TCP proxy between client and server that cuts a connection in the middle of a transfer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Proxy:
    """Forwards connections; one that has carried `cut_after` bytes in a direction is cut, some times."""

    def __init__(self, server: str, cut_after: int, *, up: bool, times: int = 1) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._cut_after = self._left = cut_after
        self._times = times
        self._up = up
        self.cuts = 0
        self._lock = threading.Lock()
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
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._sockets += [client, server]
            for source, target, up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._forward, args=(source, target, up), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if up == self._up and self._cuts_now(len(data)):
                    break
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _cuts_now(self, num_bytes: int) -> bool:
        with self._lock:
            if self.cuts == self._times:
                return False
            self._left -= num_bytes
            if self._left >= 0:
                return False
            self.cuts += 1
            self._left = self._cut_after
            return True
