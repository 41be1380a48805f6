"""The server's certificate, which may be renewed while it runs: new connections get the new one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import grpc

from common.access.expiry import expiry
from common.atomic import file_stamp
from common.errors import FedError
from common.events import Emit, Trouble
from fedserver.access.settings import TlsFiles
from fedserver.events.run import CertificateRenewed


class Renewal:
    """Looks at the files whenever somebody connects, and reads them again if they have changed.

    Files that cannot be used, or do not fit each other yet, leave the certificate in force.
    """

    def __init__(self, read: Callable[[], TlsFiles | None], files: Sequence[Path], emit: Emit) -> None:
        """`read` gives their content, checked; raises if it cannot be used."""
        self._read = read
        self._files = tuple(files)
        self._emit = emit
        self._lock = threading.Lock()
        self._stamps = self._now()
        self._warn()

    def _now(self) -> list[tuple[int, int, int] | None]:
        return [file_stamp(path) for path in self._files]

    def _warn(self) -> None:
        soon = expiry(self._files[0], datetime.now(UTC))
        if soon is not None:
            self._emit(soon)

    def credentials(self) -> grpc.ServerCredentials:
        """For a server's port."""
        first = self._read()
        assert first is not None, "without TLS there is nothing to renew"
        return grpc.dynamic_ssl_server_credentials(
            _configuration(first),
            self._changed,  # type: ignore[arg-type]  # It may give None, its documentation says.
            first.client_authority is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called for every handshake, by gRPC's threads; None if all is as it was."""
        with self._lock:
            stamps = self._now()
            if stamps == self._stamps:
                return None
            # The stamps come first: what changes in between is seen next time, and faults are told once.
            self._stamps = stamps
            try:
                found = self._read()
            except (FedError, OSError) as error:
                self._emit(Trouble(reason=f"{error}; the certificate that was read before stays in force"))
                return None
        assert found is not None
        self._emit(CertificateRenewed(path=str(self._files[0])))
        self._warn()
        return _configuration(found)


def _configuration(tls: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.client_authority)
