"""What a worker says that cannot import torch."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from common.errors import ConfigError, FedError
from common.installation import extras
from fedserver.worker.messages import Failure, Reply, encoded, request_of
from fedserver.worker.task_run import needs_torch


def tell(connection: int, error: ImportError) -> None:
    """Answers the first question with what is missing."""
    server: Connection[Any, Any] = Connection(connection)
    with suppress(EOFError, ConnectionError):
        request = request_of(server.recv_bytes())
        try:
            why = needs_torch(request.prepare) if request.prepare is not None else ""
        except FedError as unreadable:
            why = str(unreadable)
        if isinstance(error, ModuleNotFoundError) and extras.missing(error):
            why += f", or {extras.remedy('torch')}"
        known = ConfigError(f"this run needs torch at the server, which fails to import ({error}): {why}")
        server.send_bytes(encoded(Reply(failure=Failure(error=str(known), exit_code=known.exit_code))))
