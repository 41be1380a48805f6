"""The calls of service Federation, as a table made from its descriptor.

Whoever handles calls one by one goes through this table: the endpoint, the transports, the byte ledger, the
inspector and the tests. A call that is added to federation.proto is in all of them at once; it needs a method
of the service, and one of the client's connection if clients make it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from common.wire.limits import MAX_JOIN_REPLY_BYTES, MAX_REPLY_BYTES
from fedpvr.v1 import federation_pb2 as pb

_FEDERATION = pb.DESCRIPTOR.services_by_name["Federation"]
SERVICE = _FEDERATION.full_name


@dataclass(frozen=True)
class Call:
    """One kind of call."""

    name: str
    request: type[Message]
    reply: type[Message]
    streams_requests: bool = False
    streams_replies: bool = False

    @property
    def path(self) -> str:
        """As gRPC writes it, for example /fedpvr.v1.Federation/Join."""
        return f"/{SERVICE}/{self.name}"

    @property
    def method(self) -> str:
        """The name of what answers it in Python: PullRound is pull_round."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    @property
    def max_reply_bytes(self) -> int:
        """What a client lets through of one reply."""
        return MAX_JOIN_REPLY_BYTES if self.reply is pb.JoinReply else MAX_REPLY_BYTES


def _call(method: MethodDescriptor) -> Call:
    return Call(
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )


CALLS = {method.name: _call(method) for method in _FEDERATION.methods}
"""By name, in the order of federation.proto."""
