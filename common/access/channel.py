"""A channel to a server, with what the server wants to see."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from common.access.credentials import Credentials


def open_channel(
    server: str, credentials: Credentials, options: Sequence[tuple[str, int | str]] = ()
) -> grpc.Channel:
    """With TLS if there is an authority to check the server by."""
    if credentials.ca is None:
        return grpc.insecure_channel(server, options=list(options))
    key, chain = credentials.certificate or (None, None)
    secrets = grpc.ssl_channel_credentials(credentials.ca, key, chain)
    return grpc.secure_channel(server, secrets, options=list(options))
