"""Bytes on this process's TCP connections, as the kernel counts them.

gRPC keeps its sockets to itself, but they are file descriptors of this process: each is looked up in
/proc/self/fd and asked for TCP_INFO, which tells the bytes sent, retransmissions left out, and the bytes
received: HTTP/2 frames and, with TLS, its records, but no TCP or IP headers. Where there is no such kernel
there is no such count.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

Address = tuple[str, int]
_RECEIVED, _SENT = 128, 200
"""Offsets of tcpi_bytes_received and tcpi_bytes_sent (Linux 4.19) in struct tcp_info."""


@dataclass(frozen=True)
class ConnectionBytes:
    """One connection of this process."""

    local_port: int
    peer: Address
    sent: int
    received: int


def can_tell() -> bool:
    """Whether this machine has such counts."""
    return sys.platform == "linux" and Path("/proc/self/fd").is_dir()


def connections() -> Iterator[ConnectionBytes]:
    """All TCP connections of this process."""
    for entry in Path("/proc/self/fd").iterdir():
        # A descriptor may be closed at any moment, by others.
        with suppress(OSError, struct.error, ValueError):
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                local_port = copy.getsockname()[1]
                peer = copy.getpeername()
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            sent, again = struct.unpack_from("<QQ", info, _SENT)
            (received,) = struct.unpack_from("<Q", info, _RECEIVED)
            yield ConnectionBytes(local_port, (plain(peer[0]), peer[1]), sent - again, received)


@lru_cache(1024)
def plain(host: str) -> str:
    """One spelling for an address, with IPv4 in IPv6 as IPv4."""
    found = ipaddress.ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
