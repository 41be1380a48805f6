"""A channel to a server, with what the server wants to see."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from common.access import Shown


def open_channel(server: str, shown: Shown, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
    """With TLS if there is an authority to check the server by."""
    if shown.ca is None:
        return grpc.insecure_channel(server, options=list(options))
    key, chain = shown.certificate or (None, None)
    credentials = grpc.ssl_channel_credentials(shown.ca, key, chain)
    return grpc.secure_channel(server, credentials, options=list(options))
