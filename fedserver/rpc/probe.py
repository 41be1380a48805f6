"""The reply to Probe: what a client is to expect of the run, and padding that measures its link.

A caller is asked who it is as for any other call, a reply has little padding, and there are only so many
replies in a second, for one caller and for all: nobody can make a server send much.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from common.errors import UnavailableError, WireError
from common.wire.chunks import CHUNK_BYTES, PROTOCOL_VERSION
from common.wire.limits import MAX_REPLY_BYTES, OTHER_FIELDS_BYTES
from fedpvr.v1 import federation_pb2 as pb
from fedserver.access.authenticate import Caller
from fedserver.access.token_bucket import TokenBucket, TokenBuckets
from fedserver.rpc.seat import model_message, require_version
from fedserver.run.run import Run, rules_of

MAX_PADDING_BYTES = {"sent": CHUNK_BYTES, "asked for": CHUNK_BYTES // 4}
"""Whoever sends has the work too."""
PROBES_PER_S, PROBES_AT_ONCE = 1.0, 128
"""Of one caller, with padding and without; a check takes half a dozen of each."""
ALL_PER_S, ALL_AT_ONCE = 20.0, 512
MAX_CALLERS = 10_000


class Probes:
    """Answers probes of one run."""

    def __init__(self, run_id: str, now: Callable[[], float] = time.monotonic) -> None:
        self._run_id = run_id
        self._by_caller = TokenBuckets(PROBES_PER_S, PROBES_AT_ONCE, MAX_CALLERS, now)
        self._all = TokenBucket(ALL_PER_S, ALL_AT_ONCE, now)

    def answer(self, request: pb.ProbeRequest, caller: Caller, run: Run | None) -> pb.ProbeReply:
        """Raises for a caller that may not speak for the client, and for one that asks too much."""
        caller.require(request.client)
        require_version(request.protocol_version)
        for what, size in (("sent", len(request.padding)), ("asked for", request.padding_bytes)):
            if size > MAX_PADDING_BYTES[what]:
                raise WireError.broken_contract(
                    f"padding that is {what} has at most {MAX_PADDING_BYTES[what]} bytes, got {size}"
                )
        # An address where nobody is asked who he is; whoever goes beyond his own share takes none of others.
        who = caller.name or caller.peer.rpartition(":")[0]
        padded = bool(request.padding_bytes or request.padding)
        if not (self._by_caller.take(f"{who} {padded}") and self._all.take()):
            raise UnavailableError("too many probes; try again in a minute")
        reply = pb.ProbeReply(
            protocol_version=PROTOCOL_VERSION, unix_seconds=time.time(), run_id=self._run_id
        )
        if request.padding_bytes:
            reply.padding = secrets.token_bytes(request.padding_bytes)  # No link makes it smaller.
        if run is not None and not padded:
            _tell_terms(reply, run)
        return reply


def _tell_terms(reply: pb.ProbeReply, run: Run) -> None:
    config = run.config
    reply.model.CopyFrom(model_message(run))
    reply.seed, reply.num_clients = config.seed, config.num_clients
    reply.dataset = "" if config.has_task else config.dataset
    reply.rules.CopyFrom(rules_of(config, 1, run.prepared.augment, 0).to_header())
    reply.down_bytes, reply.up_bytes = run.down.buffer_bytes, run.up.buffer_bytes
    if reply.ByteSize() > MAX_REPLY_BYTES - OTHER_FIELDS_BYTES:
        del reply.model.class_names[:]
