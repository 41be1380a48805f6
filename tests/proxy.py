"""A TCP proxy between client and server that does to connections what bad networks do.

A fault is made at a stated byte of a direction, counted over all connections, so that it can be repeated.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

DELAY_S = 1.0
SEGMENT = 1 << 16
KINDS = ("drop", "delay", "truncate", "duplicate", "corrupt", "half-open")


@dataclass(frozen=True)
class Fault:
    """What goes wrong once so many bytes have passed in a direction.

    drop: hangs up, and loses what came together with the byte    truncate: hangs up exactly there
    delay: holds everything back for a second                     half-open: nothing passes there any more
    duplicate: up to `size` bytes before it come again            corrupt: the byte is another, by `mask`
    """

    kind: str
    up: bool
    at: int
    size: int = 1
    mask: int = 1


def faults(kind: str, up: bool, times: int, spacing: int, seed: str = "") -> list[Fault]:
    """So many, each anywhere in a stretch of so many bytes; alike for a seed."""
    chance = random.Random(f"{kind} {up} {seed}")
    return [
        Fault(
            kind,
            up,
            k * spacing + chance.randrange(spacing),
            size=chance.randint(1, SEGMENT),
            mask=chance.randint(1, 255),
        )
        for k in range(times)
    ]


class Proxy:
    """Forwards connections, with faults; `made` are those that have happened."""

    def __init__(self, server: str, planned: Sequence[Fault]) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        in_order = sorted(planned, key=lambda fault: fault.at)
        self._planned = {up: [fault for fault in in_order if fault.up is up] for up in (True, False)}
        self._passed = {True: 0, False: 0}
        self._lock = threading.Lock()
        self.made: list[Fault] = []
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
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
            ended: list[bool] = []
            for source, target, up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._forward, args=(source, target, up, ended), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, up: bool, ended: list[bool]) -> None:
        before = b""
        with suppress(OSError):
            while data := source.recv(SEGMENT):
                passed_on, goes_on = self._with_faults(before, data, up)
                target.sendall(passed_on)
                if not goes_on:
                    break
                before = (before + data)[-SEGMENT:]
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            ended.append(up)
        if len(ended) == 2:
            # Else who still has megabytes to send goes on trying to, and does not hear that nobody is there.
            source.close()
            target.close()

    def _with_faults(self, before: bytes, data: bytes, up: bool) -> tuple[bytes, bool]:
        """What is passed on instead of a segment, and whether the connection goes on."""
        with self._lock:
            start = self._passed[up]
            self._passed[up] += len(data)
            due = [fault for fault in self._planned[up] if fault.at < start + len(data)]
            self._planned[up] = self._planned[up][len(due) :]
            self.made += due
        out, added = data, 0
        for fault in due:
            at = max(fault.at - start, 0)
            match fault.kind:
                case "drop":
                    return b"", False
                case "delay":
                    time.sleep(DELAY_S)
                case "truncate":
                    return out[: at + added], False
                case "duplicate":
                    again = (before + data[:at])[-fault.size :]
                    out = out[: at + added] + again + out[at + added :]
                    added += len(again)
                case "corrupt":
                    at += added
                    out = out[:at] + bytes([out[at] ^ fault.mask]) + out[at + 1 :]
                case "half-open":
                    self._over.wait()
                    return b"", False
                case other:
                    raise ValueError(other)
        return out, True
