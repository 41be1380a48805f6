"""Runs a program as one of a release before bundles: python -m tests.earlier PROGRAM ARGUMENT...

It does not say that it takes several chunks in a message, sends none of these, and fails if it gets them.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

from google.protobuf.message import Message

from common.wire import messages
from common.wire.chunks import TOGETHER, Data, sealed
from fedclient.rpc import connection, round_stream
from fedclient.rpc.seat import Seat, seat_of
from fedpvr.v1 import federation_pb2 as pb
from fedserver.traffic import traffic


def sealed_before(message: Message) -> bytes:
    """A message without what earlier releases do not say."""
    if "takes_bundles" in message.DESCRIPTOR.fields_by_name:
        message.ClearField("takes_bundles")
    return sealed(message)


def seat_before(reply: pb.JoinReply) -> Seat:
    """A seat without what earlier releases do not read."""
    return replace(seat_of(reply), takes_bundles=False)


def only_frame(message: Data) -> list[Data]:
    """The message."""
    assert message[:1] != TOGETHER, "an earlier release takes one chunk a message"
    return [message]


def main() -> None:
    """Runs the program."""
    for sender in (connection, traffic):
        sender.sealed = sealed_before  # type: ignore[attr-defined]
    connection.seat_of = seat_before  # type: ignore[attr-defined]
    for receiver in (messages, round_stream):
        receiver.frames_in = only_frame  # type: ignore[attr-defined]
    sys.argv = sys.argv[1:]
    importlib.import_module(f"{sys.argv[0]}.cli").main()


if __name__ == "__main__":
    main()
