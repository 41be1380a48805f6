"""Failed TLS handshakes in plain words.

gRPC tells of them only on the process's standard error, in terms of its TLS library. Here these lines are
taken out of the stream; all others pass.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import suppress
from types import TracebackType

from fedserver.access.authenticate import Refusals

_MISNAMED = re.compile(rb"No match found for server name: (\S+)")
_FAILED = re.compile(rb"Handshake failed with error .*OPENSSL_internal:(\w+)(?:: (.*))?")
_UNTRUSTING = "it does not accept this server's certificate"
_WORDS = {
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet",
    "unable to get local issuer certificate": "its certificate is not of this authority",
    "self signed certificate": "its certificate is not of this authority",
    "unsupported certificate purpose": "its certificate is not a client's",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks an old version of TLS only",
    "NO_SHARED_CIPHER": "it knows no cipher that is allowed here",
    "BAD_PACKET_LENGTH": _UNTRUSTING,
    "SSLV3_ALERT_BAD_CERTIFICATE": _UNTRUSTING,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": _UNTRUSTING,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _UNTRUSTING,
    "TLSV1_ALERT_UNKNOWN_CA": _UNTRUSTING,
}


def in_words(line: bytes) -> str | None:
    """Why a handshake failed, if a line of gRPC's tells of one."""
    if misnamed := _MISNAMED.search(line):
        return (
            f"a connection: it asks for {misnamed[1].decode(errors='replace')}, and server.pem is for others"
        )
    found = _FAILED.search(line)
    if found is None:
        return None
    fault, reason = (group.decode(errors="replace") for group in (found[1], found[2] or b""))
    why = _WORDS.get(reason) or _WORDS.get(fault) or f"the handshake failed ({reason or fault})"
    return f"a connection: {why}"


class HandshakeLog:
    """Stands between this process and its standard error."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals

    def __enter__(self) -> HandshakeLog:
        sys.stderr.flush()
        self._real = os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        self._thread = threading.Thread(target=self._read, args=(reading,), name="handshakes", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stderr.flush()
        os.dup2(self._real, 2)
        self._thread.join()
        os.close(self._real)

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                words = in_words(line)
                if words is None:
                    with suppress(OSError):
                        os.write(self._real, line)
                else:
                    self._refusals.note(words)
