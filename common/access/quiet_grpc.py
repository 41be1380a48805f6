"""gRPC without its own lines about handshakes on standard error: this program says it in plain words."""

from __future__ import annotations

import os

VERBOSITY = "GRPC_VERBOSITY"


def import_grpc_quietly() -> None:
    """Imports gRPC, unless that has been done; it reads then, and only then, how much it is to say.

    A user's own choice counts. Programs that this one starts do not inherit it: a server reads such lines.
    """
    chosen = os.environ.get(VERBOSITY)
    os.environ.setdefault(VERBOSITY, "ERROR")
    import grpc  # noqa: F401

    if chosen is None:
        del os.environ[VERBOSITY]
