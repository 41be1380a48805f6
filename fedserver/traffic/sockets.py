"""Bytes on this process's TCP connections, as the kernel counts them.

gRPC keeps its sockets to itself, but they are file descriptors of this process: each is looked up in
/proc/self/fd and asked for TCP_INFO, which tells the bytes sent, retransmissions left out, and the bytes
received: HTTP/2 frames and, with TLS, its records, but no TCP or IP headers. Where there is no such kernel
there is no such count.
"""

from __future__ import annotations

import ipaddress
import math
import os
import socket
import stat
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from common.wire.messages import DIRECTIONS

Address = tuple[str, int]
_RECEIVED, _SENT = 128, 200
"""Offsets of tcpi_bytes_received and tcpi_bytes_sent (Linux 4.19) in struct tcp_info."""


def address(peer: str) -> Address | None:
    """Host and port of a peer as gRPC writes it, for example ipv4:127.0.0.1:4711."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    with suppress(ValueError):
        return _plain(host.strip("[]")), int(port)
    return None


def _plain(host: str) -> str:
    """One spelling for an address, with IPv4 in IPv6 as IPv4."""
    found = ipaddress.ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def _counts(port: int) -> dict[Address, tuple[int, int]]:
    """Bytes sent and received on every connection to a local port, by peer."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        # A descriptor may be closed at any moment, by others.
        with suppress(OSError, struct.error, ValueError):
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.getsockname()[1] != port:
                    continue
                peer = copy.getpeername()
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            sent, again = struct.unpack_from("<QQ", info, _SENT)
            (received,) = struct.unpack_from("<Q", info, _RECEIVED)
            found[_plain(peer[0]), peer[1]] = (sent - again, received)
    return found


class Connections:
    """Bytes by client and direction on all connections to a port, sampled now and then.

    What passed on a connection between the last sample and its end is not counted.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: dict[Address, str] = {}
        self._now: dict[Address, tuple[int, int]] = {}
        self._counted: dict[Address, tuple[int, int]] = {}
        self._sampled_s = -math.inf
        self._took_s = 0.0
        self.total: Counter[tuple[str, str]] = Counter()

    @staticmethod
    def can_tell() -> bool:
        """Whether this machine has such counts."""
        return sys.platform == "linux" and Path("/proc/self/fd").is_dir()

    def belongs_to(self, peer: Address, client: str) -> None:
        """Notes whose connection it is."""
        self._clients[peer] = client

    def received(self, peer: Address) -> int | None:
        """Bytes that have come from a peer; None if it is not connected."""
        self.sample()
        return self._now[peer][1] if peer in self._now else None

    def sample(self, *, at_most_every: float = 0.0) -> None:
        """Asks the kernel."""
        started = time.monotonic()
        # With thousands of connections a sample takes tens of milliseconds; it gets a twentieth of the time.
        if at_most_every and started - self._sampled_s < max(at_most_every, 20 * self._took_s):
            return
        current = _counts(self._port)
        self._sampled_s = time.monotonic()
        self._took_s = self._sampled_s - started
        for peer in [peer for peer in self._now if _is_other(current.get(peer), self._now[peer])]:
            self._count(peer, self._clients.pop(peer, ""))
            del self._now[peer], self._counted[peer]
        for peer, counts in current.items():
            self._now[peer] = counts
            self._counted.setdefault(peer, (0, 0))
            if peer in self._clients:
                self._count(peer, self._clients[peer])
        self._clients = {peer: name for peer, name in self._clients.items() if peer in current}

    def count_strangers(self) -> None:
        """Counts the connections of nobody known, too."""
        for peer in self._now.keys() - self._clients.keys():
            self._count(peer, "")

    def _count(self, peer: Address, client: str) -> None:
        for direction, new, old in zip(DIRECTIONS, self._now[peer], self._counted[peer], strict=True):
            self.total[client, direction] += new - old
        self._counted[peer] = self._now[peer]


def _is_other(current: tuple[int, int] | None, before: tuple[int, int]) -> bool:
    """Whether a connection is gone, or another one has come from the same address."""
    return current is None or current[0] < before[0] or current[1] < before[1]
