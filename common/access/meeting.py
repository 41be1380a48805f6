"""A short meeting with whatever listens at an address, without gRPC: what it speaks, and what it shows."""

from __future__ import annotations

import socket
import ssl
import time
from types import TracebackType

PROBE_S = 3.0
"""How long one may take."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of gRPC opens a connection: HTTP/2's greeting and empty settings."""
MOST_BYTES = 1 << 16


def host_of(server: str) -> str:
    """The host of HOST:PORT."""
    return server.rpartition(":")[0].strip("[]")


class Meeting:
    """A connection, what has been heard on it so far, and an end to patience."""

    def __init__(self, server: str) -> None:
        self._host = host_of(server)
        self._until = time.monotonic() + PROBE_S
        self._socket = socket.create_connection((self._host, int(server.rpartition(":")[2])), PROBE_S)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self.heard = b""

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def greet(self) -> bytes:
        """The beginning of the answer to a client of gRPC without TLS; empty if the server hangs up."""
        self._socket.sendall(PREFACE)
        return self._received()

    def look(self, context: ssl.SSLContext) -> bytes:
        """The certificate that the server shows, in DER form; it is left without the last word."""
        self._handshake(context)
        assert self._tls is not None
        return self._tls.getpeercert(binary_form=True) or b""

    def shake_hands(self, context: ssl.SSLContext) -> None:
        """A whole handshake, as far as the client can tell."""
        self._handshake(context)
        self._socket.sendall(self._outgoing.read())

    def _handshake(self, context: ssl.SSLContext) -> None:
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=self._host)
        while True:
            try:
                return self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._exchange()

    def read(self) -> bytes:
        """What the server says after the handshake; empty if it hangs up instead."""
        assert self._tls is not None, "a handshake comes first"
        while True:
            try:
                return self._tls.read(4096)
            except ssl.SSLWantReadError:
                try:
                    self._exchange()
                except ConnectionError:
                    return b""
            except ssl.SSLError:  # An alert.
                return b""

    def _exchange(self) -> None:
        self._socket.sendall(self._outgoing.read())
        received = self._received()
        if not received:
            raise ConnectionResetError
        self._incoming.write(received)

    def _received(self) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0 or len(self.heard) > MOST_BYTES:
            raise TimeoutError
        self._socket.settimeout(left)
        received = self._socket.recv(4096)
        self.heard += received
        return received


def is_http2(heard: bytes) -> bool:
    """Whether it starts with a frame of settings, as every server of HTTP/2 does."""
    return heard[:2] == b"\0\0" and heard[3:4] == b"\4"


def is_tls(heard: bytes) -> bool:
    """Whether it starts with a record of a handshake, or with an alert."""
    return heard[:1] in (b"\x15", b"\x16") and heard[1:2] == b"\3"
