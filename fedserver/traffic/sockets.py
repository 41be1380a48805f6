"""Bytes on the connections to this server, by client and direction."""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import suppress
from urllib.parse import unquote

from common.access.tcp_counts import Address, connections, plain
from common.wire.messages import DIRECTIONS


def address(peer: str) -> Address | None:
    """Host and port of a peer as gRPC writes it, for example ipv4:127.0.0.1:4711."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    with suppress(ValueError):
        return plain(host.strip("[]")), int(port)
    return None


def _counts(port: int) -> dict[Address, tuple[int, int]]:
    """Bytes sent and received on every connection to a local port, by peer."""
    return {each.peer: (each.sent, each.received) for each in connections() if each.local_port == port}


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
        self.lost: set[str] = set()
        """Clients whose only connection is gone, until one of them is heard of on another."""

    def belongs_to(self, peer: Address, client: str) -> None:
        """Notes whose connection it is."""
        self._clients[peer] = client
        self.lost.discard(client)

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
            client = self._clients.pop(peer, "")
            self._count(peer, client)
            if client and client not in self._clients.values():
                self.lost.add(client)
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
