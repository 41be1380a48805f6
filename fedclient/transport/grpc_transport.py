"""Calls over gRPC. Messages come and go encoded: chunks are written around tensors and read in place."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc import _common as grpc_common
from grpc.experimental import ChannelOptions

from common.access.channel import open_channel
from common.access.credentials import Credentials
from common.errors import OverdueError, TooLargeError, UnavailableError
from common.wire.calls import CALLS, SERVICE, Call
from common.wire.chunks import CHUNK_BYTES
from common.wire.statuses import error_of
from fedclient.transport.liveness import Liveness, WatchedCall, bytes_to

WINDOW_BYTES = 8 << 20
"""What a server may send ahead: a gigabit a second over 60 ms."""
_LIMITS = {
    "methodConfig": [
        {"name": [{"service": SERVICE, "method": call.name}], "maxResponseMessageBytes": call.max_reply_bytes}
        for call in CALLS.values()
    ]
}
"""Largest replies by call: gRPC takes the smaller one of this and of the channel's own limit."""
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A client waits for hours in one call; pings tell a slow server from a dead one.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # On a slow link a ping waits behind a megabyte of data, so it gets more than the usual minute;
    # `liveness` is quicker where it can tell a slow link from a broken one.
    ("grpc.http2.ping_timeout_ms", 180_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Frames stay at 16 KiB instead of growing to megabytes with the speed of the link: whoever is out of step
    # in a damaged stream notices at the next one, instead of waiting for the rest of it.
    ("grpc.http2.bdp_probe", 0),
    # A connection of its own for every client, also for several in one process.
    ("grpc.use_local_subchannel_pool", 1),
    # Who waits for a frame reads it, instead of a thread that wakes it up then.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
    ("grpc.max_receive_message_length", max(call.max_reply_bytes for call in CALLS.values())),
    ("grpc.service_config", json.dumps(_LIMITS)),
]
CLOSE_S = 2.0
# gRPC wakes every call that waits ten times a second, lest signals wait for it. In Python 3 they do not.
# Of a thousand clients on a machine that is ten thousand times a second.
grpc_common.MAXIMUM_WAIT_TIMEOUT = 1.0
_HEALTH = "/grpc.health.v1.Health/Check"
_JOIN, _PULL = "Join", "PullRound"
"""Calls that the server answers when it is time, which may take hours."""


class GrpcTransport:
    """A channel to a server; errors of gRPC become ours."""

    chunk_bytes = CHUNK_BYTES

    def __init__(self, server: str, credentials: Credentials, window_bytes: int = WINDOW_BYTES) -> None:
        """`window_bytes` bounds what the server may send ahead of what has been read."""
        self._server = server
        self._credentials = credentials
        options = [*_OPTIONS, ("grpc.http2.lookahead_bytes", window_bytes)]
        self._channel = open_channel(server, credentials, options)
        self._lost = ""
        # TLS lets no damaged byte through, so nothing but the whole connection can get lost.
        plain = credentials.ca is None
        self._liveness = Liveness(lambda: bytes_to(server), self._answers, self._hang_up, loses_calls=plain)

    def ask(self, call: Call, request: bytes) -> bytes:
        """Waits for the reply, however long the server takes."""
        return self._reply(call, self._channel.unary_unary(call.path), request)

    def pull(self, call: Call, request: bytes) -> Iterator[bytes]:
        """Reads no faster than the caller does."""
        method: Any = self._channel.unary_stream(call.path)
        with self._watched(call) as watched:
            frames = method(request, metadata=self._credentials.metadata)
            watched.cancel = frames.cancel
            for frame in frames:
                self._liveness.heard(watched)
                yield frame

    def push(self, call: Call, frames: Iterator[bytes]) -> bytes:
        """gRPC takes the frames in a thread of its own, as fast as they go out."""
        return self._reply(call, self._channel.stream_unary(call.path), frames)

    def close(self) -> None:
        """Ends calls that are still open, too.

        A signal may have come in the middle of starting a call, for whose end gRPC would wait for ever.
        """
        self._liveness.close()
        closing = threading.Thread(target=self._channel.close, name="closing", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _reply(self, call: Call, method: Any, request: Any) -> bytes:
        with self._watched(call) as watched:
            asked = method.future(request, metadata=self._credentials.metadata)
            # Who joins again is one more who has come, and a server that gathers clients waits for longer.
            watched.cancel = asked.cancel if call.name != _JOIN else None
            reply: bytes | None = asked.result()
        if reply is None:
            raise UnavailableError(f"no server answers at {self._server} (the reply has no message)")
        return reply

    @contextmanager
    def _watched(self, call: Call) -> Iterator[WatchedCall]:
        """A call whose errors become ours, and which is not waited for in vain."""
        with self._mapped_errors(), self._liveness.call(may_wait=call.name in (_JOIN, _PULL)) as watched:
            try:
                yield watched
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                if watched.overdue:
                    raise OverdueError(f"{call.name} has no answer from {self._server}") from error
                raise

    def _answers(self, seconds: float) -> bool:
        """Whether anything at all comes back; that a connection is lost, its calls notice by themselves."""
        ask: Any = self._channel.unary_unary(_HEALTH)
        try:
            ask(b"", timeout=seconds)
        except grpc.RpcError as error:
            return bool(error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED)
        except ValueError:  # The channel was closed meanwhile.
            return True
        return True

    def _hang_up(self, quiet_s: float) -> None:
        self._lost = f"no server answers at {self._server} (connected, but nothing came for {quiet_s:.0f} s)"
        self._channel.close()

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except (grpc.RpcError, grpc.FutureCancelledError, ValueError) as error:
            if self._lost:
                raise UnavailableError(self._lost) from error
            if not isinstance(error, grpc.RpcError):
                raise  # The channel is closed, and not from here.
            code, details = error.code().name, error.details() or "no reason given"
            mapped = error_of(code, details)
            if not isinstance(mapped, UnavailableError) or isinstance(mapped, TooLargeError):
                raise mapped from error
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                details += "; is it a fedserver, or one of another release?"
            raise type(mapped)(f"no server answers at {self._server} ({code}: {details})") from error
