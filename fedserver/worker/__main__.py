"""The process beside the server that has torch: it builds the model and the shards, and evaluates x.

Started by `fedserver.worker.process`, which speaks with it over a socket pair in the words of
`fedserver.worker.messages`: a request, for an evaluation followed by the flat buffer, and a reply, for a
preparation followed by x^0. It ends when the server does, whichever way that happens, because the socket then
closes; `fedserver.worker.lifeline` sees to it from the first moment on.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from common.devices.choice import placed
from common.errors import FedError, RunError
from common.installation import extras
from common.tensors.layout import Flat
from fedserver.worker.messages import (
    Failure,
    Reply,
    Request,
    encoded,
    request_of,
)
from fedserver.worker.worker import Worker


def main() -> None:
    """Answers requests until the server hangs up, which it may do at any moment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    server: Connection[Any, Any] = Connection(int(sys.argv[1]))
    worker = Worker()
    with suppress(EOFError, ConnectionError):
        while True:
            request = request_of(server.recv_bytes())
            flat = np.frombuffer(bytearray(server.recv_bytes()), np.uint8) if request.flat else None
            for part in _answer(worker, request, flat):
                server.send_bytes(part)


def _answer(worker: Worker, request: Request, flat: Flat | None) -> list[bytes | memoryview]:
    """A reply and what comes with it; or the error."""
    try:
        if request.prepare is not None:
            worker.move(placed(request.device))
            prepared = worker.prepare(request.prepare)
            reply = encoded(Reply(built=prepared.built()))
            return [reply, prepared.x0.data] if request.x0 else [reply]
        if request.cka is not None:
            return [encoded(Reply(similarity=worker.cka(request.cka)))]
        if request.conformal is not None and flat is not None:
            return [encoded(Reply(conformal=worker.conformal(flat, request.conformal)))]
        if request.evaluate and flat is not None:
            return [encoded(Reply(evaluation=worker.evaluate(flat)))]
        raise RunError(f"the worker does not know {request}")
    except Exception as error:
        absent = extras.missing(error) if isinstance(error, ModuleNotFoundError) else None
        known = error if isinstance(error, FedError) else absent or RunError(f"the worker failed: {error!r}")
        return [encoded(Reply(failure=Failure(error=str(known), exit_code=known.exit_code)))]


if __name__ == "__main__":
    main()
