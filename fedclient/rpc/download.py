"""A broadcast on its way in, which survives the connection it began on."""

from __future__ import annotations

from common.errors import UnavailableError
from common.tensors.buffers import reused
from common.tensors.layout import Flat, Layout
from common.wire.chunks import START, Chunk, Position
from common.wire.encoding import Encoding
from common.wire.receiver import Receiver
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1.tensor_pb2 import Position as WirePosition


class Download:
    """What has come so far of a round."""

    def __init__(self) -> None:
        self._header = pb.RoundHeader()
        """The one that it began with."""
        self._encoding = Encoding(Layout([]))
        self._raw = self._encoding.encoded.allocate()
        self._receiver: Receiver | None = None

    @property
    def position(self) -> Position:
        """Everything before this has come."""
        return START if self._receiver is None else self._receiver.position

    def resume(self) -> pb.Resume | None:
        """Where to go on, for the request; None if nothing has come."""
        if self._receiver is None or self._receiver.position == START:
            return None
        tensor, offset = self._receiver.position
        return pb.Resume(round=self._header.round, position=WirePosition(tensor=tensor, offset=offset))

    def begin(self, header: pb.RoundHeader, encoding: Encoding) -> None:
        """Takes in a header whose manifest has been checked: goes on where the last stream broke, or anew."""
        if header.HasField("resumed_at"):
            if not self._continues(header, encoding):
                self._receiver = None
                raise UnavailableError("the server goes on with another download; starting it again")
        else:
            self._header, self._encoding = header, encoding
            self._raw = reused(encoding.encoded)
            self._receiver = Receiver(encoding.encoded, self._raw)

    def _continues(self, header: pb.RoundHeader, encoding: Encoding) -> bool:
        """Whether what is missing belongs to what is here.

        A restarted server may open the round under other rules, and then with another c.
        """
        began = pb.RoundHeader()
        began.CopyFrom(header)
        began.ClearField("resumed_at")
        start = (header.resumed_at.tensor, header.resumed_at.offset)
        return self.position == start and self._encoding.matches(encoding) and began == self._header

    def add(self, chunk: Chunk) -> None:
        """Takes in a chunk."""
        assert self._receiver is not None, "a header comes first"
        self._receiver.add(chunk)

    def finish(self) -> Flat:
        """The bytes of all tensors; raises unless all have come."""
        assert self._receiver is not None, "a header comes first"
        self._receiver.finish()
        self._receiver = None
        whole, self._raw = self._raw, self._raw[:0].copy()  # An idle client has no use for it.
        return whole
