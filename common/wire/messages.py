"""Says what each message of a call is for, from its bytes alone.

The byte ledger of a running server, a capture file and a packet capture are all read by this one piece of
code. A message is never refused here: what cannot be understood counts as `other`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from common.errors import WireError
from common.tensors.layout import Purpose
from common.wire.chunks import read_chunk
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.tensor_pb2 import TensorSpec

SERVICE = pb.DESCRIPTOR.services_by_name["Federation"].full_name
DIRECTIONS = ("down", "up")
PURPOSES = ("model", "buffer", "control", "other")
NAMES = {
    Purpose.MODEL: "model",
    Purpose.BUFFER: "buffer",
    Purpose.CONTROL: "control",
    Purpose.CLIENT_CONTROL: "control",
}


@dataclass(frozen=True)
class Content:
    """What one message is."""

    kind: str
    """request, reply, header, chunk, finished or unreadable."""
    purpose: str = "other"
    tensor: str = ""
    payload: int = 0
    """Bytes that are a tensor's; the rest of the message is its envelope."""


@dataclass(frozen=True)
class ClassifiedMessage:
    """One message of a call, once it is clear what it is and whose."""

    time_ns: int
    up: bool
    data: bytes
    entry: Content
    client: str
    round: int


class CallFollower:
    """Follows one call and hands on each message as soon as its round is known.

    That of a request for a round is known only once the answer comes.
    """

    def __init__(self, rpc: str, hand_on: Callable[[ClassifiedMessage], None]) -> None:
        self._reader = CallReader(rpc)
        self._hand_on = hand_on
        self._held: list[tuple[int, bytes, Content]] = []

    def note(self, up: bool, data: bytes, time_ns: int = 0) -> None:
        """Takes in the next message."""
        time_ns = time_ns or time.time_ns()
        entry = self._reader.note(up, data)
        if up and self._reader.awaits_reply:
            self._held.append((time_ns, data, entry))
            return
        self.close()
        self._pass(time_ns, up, data, entry)

    def close(self) -> None:
        """Hands on what waits for an answer that will not come."""
        for time_ns, data, entry in self._held:
            self._pass(time_ns, True, data, entry)
        self._held.clear()

    def _pass(self, time_ns: int, up: bool, data: bytes, entry: Content) -> None:
        self._hand_on(ClassifiedMessage(time_ns, up, data, entry, self._reader.client, self._reader.round))


class CallReader:
    """Follows one call. `client`, `round` and `run_id` are known once a message has told them."""

    def __init__(self, rpc: str) -> None:
        self._rpc = rpc
        self._tensors: Sequence[TensorSpec] = ()
        self.client = ""
        self.round = 0
        self.run_id = ""

    @property
    def awaits_reply(self) -> bool:
        """Whether only the answer tells the round that the messages so far belong to."""
        return self._rpc in ("Join", "PullRound")

    def note(self, up: bool, data: bytes) -> Content:
        """Takes in the next message."""
        try:
            match self._rpc, up:
                case "PullRound", False:
                    return self._chunk(data) or self._round_frame(data)
                case "PushUpdate", True:
                    return self._chunk(data) or self._update_frame(data)
                case "PullRound", True:
                    asked = pb.PullRoundRequest.FromString(data)
                    self.client, self.run_id = asked.client, asked.run_id
                case "Join", True:
                    self.client = pb.JoinRequest.FromString(data).client
                case "Join", False:
                    self.run_id = pb.JoinReply.FromString(data).run_id
                case "Renew", True:
                    renewed = pb.RenewRequest.FromString(data)
                    self.client, self.run_id = renewed.client, renewed.run_id
                case "UpdateProgress", True:
                    request = pb.UpdateProgressRequest.FromString(data)
                    self.client, self.round, self.run_id = request.client, request.round, request.run_id
        except (DecodeError, WireError):
            return Content("unreadable")
        return Content("request" if up else "reply")

    def _chunk(self, data: bytes) -> Content | None:
        chunk = read_chunk(data)
        if chunk is None:
            return None
        if chunk.tensor >= len(self._tensors):
            return Content("chunk")
        spec = self._tensors[chunk.tensor]
        purpose = NAMES[Purpose(spec.purpose)] if int(spec.purpose) in set(Purpose) else "other"
        return Content("chunk", purpose, spec.name, len(chunk.data))

    def _round_frame(self, data: bytes) -> Content:
        frame = pb.RoundFrame.FromString(data)
        if frame.WhichOneof("frame") == "header":
            self.round, self._tensors = frame.header.round, frame.header.tensors
        return Content(frame.WhichOneof("frame") or "unreadable")

    def _update_frame(self, data: bytes) -> Content:
        frame = pb.UpdateFrame.FromString(data)
        if frame.WhichOneof("frame") == "header":
            header = frame.header
            self.client, self.round, self._tensors = header.client, header.round, header.tensors
            self.run_id = header.run_id
        return Content(frame.WhichOneof("frame") or "unreadable")
