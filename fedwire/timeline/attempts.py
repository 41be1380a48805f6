"""Single calls that carried x to a client or an update back, out of messages: one pass, bounded memory.

What a call leaves behind does not grow with its chunks: bytes by purpose, the longest pauses, and a few
points of its progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest

from common.wire.messages import is_canary, is_evaluation, is_gradient
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.tensor_pb2 import Position, TensorSpec
from fedwire.source import CapturedMessage

MAX_POINTS = 24
"""Of the progress of a call; where there would be more, every other one is left out."""
MAX_PAUSES = 3
"""That are kept of a call, the longest ones."""

REHEARSAL, EVALUATION, GRADIENT = "rehearsal", "evaluation", "gradient at the first x"


@dataclass
class Attempt:
    """One call that carried a broadcast or an update, or a part of it."""

    client: str
    round: int
    up: bool
    process: int
    """Which of the processes that wrote the capture."""
    start_ns: int
    announced: int
    """Bytes of all tensors."""
    skipped: int
    """Of these, bytes that had come before: the call goes on from there."""
    apart: str = ""
    """What it is part of if that is no round: a rehearsal, or the last evaluation."""
    declined: str = ""
    """Of a client that has no update: why."""
    end_ns: int = 0
    answered_ns: int = 0
    """Of an update: when the server's answer passed; 0 if there was none."""
    outcome: str = ""
    """Of an update: the server's word for it, and what is at fault."""
    fault: str = ""
    reason: str = ""
    number: int = 1
    """How many calls it took so far to carry this."""
    messages: int = 0
    """Its header and its chunks."""
    bytes: Counter[str] = field(default_factory=Counter)
    """Payload by purpose, and `other`: what is around it."""
    pauses: list[tuple[int, int]] = field(default_factory=list)
    """When nothing moved, the longest times: length and beginning."""
    points: list[tuple[int, int]] = field(default_factory=list)
    """Times and payload by then."""
    _stride: int = 1

    @property
    def payload(self) -> int:
        """Bytes of tensors that it carried."""
        return self.bytes.total() - self.bytes["other"]

    @property
    def is_whole(self) -> bool:
        """Whether all that was announced has come, in this call or before."""
        return self.skipped + self.payload >= self.announced

    @property
    def seconds(self) -> float:
        """From its header to its last chunk."""
        return (self.end_ns - self.start_ns) / 1e9

    def add(self, message: CapturedMessage) -> None:
        """Takes in a chunk, or the header."""
        if self.messages:
            pause = max(0, message.time_ns - self.end_ns)
            self.pauses = nlargest(MAX_PAUSES, [*self.pauses, (pause, self.end_ns)])
        self.end_ns = max(self.end_ns, message.time_ns)
        self.bytes[message.content.purpose] += message.content.payload
        self.bytes["other"] += message.size - message.content.payload
        if self.messages % self._stride == 0:
            self.points.append((message.time_ns, self.payload))
        self.messages += 1
        if len(self.points) > MAX_POINTS:
            del self.points[1::2]
            self._stride *= 2


def open_download(message: CapturedMessage, header: pb.RoundHeader) -> Attempt:
    """The call that this header of a round begins."""
    at = header.resumed_at if header.HasField("resumed_at") else None
    attempt = _opened(message, message.client, header.round, header.tensors, at)
    attempt.apart = _apart(header, evaluates=is_evaluation(header))
    return attempt


def open_upload(message: CapturedMessage, header: pb.UpdateHeader) -> Attempt:
    """The call that this header of an update begins."""
    at = header.resume_from if header.HasField("resume_from") else None
    attempt = _opened(message, header.client, header.round, header.tensors, at)
    evaluates = header.HasField("evaluation") and not header.tensors
    attempt.apart = _apart(header, evaluates=evaluates)
    attempt.declined = header.declined
    return attempt


def _apart(header: pb.RoundHeader | pb.UpdateHeader, *, evaluates: bool) -> str:
    """What a transfer is that belongs to no round."""
    if is_canary(header):
        return REHEARSAL
    return GRADIENT if is_gradient(header) else EVALUATION if evaluates else ""


def _opened(
    message: CapturedMessage,
    client: str,
    r: int,
    tensors: Iterable[TensorSpec],
    at: Position | None,
) -> Attempt:
    sizes = [spec.num_bytes for spec in tensors]
    skipped = 0 if at is None else sum(sizes[: at.tensor]) + at.offset
    attempt = Attempt(
        client,
        r,
        message.up,
        message.process,
        message.time_ns,
        announced=sum(sizes),
        skipped=min(skipped, sum(sizes)),
        end_ns=message.time_ns,
    )
    attempt.add(message)
    return attempt
