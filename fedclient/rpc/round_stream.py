"""A round on its way in: what the server answers to a client that asks for one, checked and decoded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from common.errors import Fault, UnavailableError, WireError
from common.server_step.rules import Rules
from common.tensors.buffers import reused
from common.tensors.layout import NOTHING, Flat, Layout, Purpose
from common.wire.bundles import frames_in
from common.wire.chunks import read_chunk
from common.wire.codecs import DERIVED
from common.wire.encoding import Encoding
from common.wire.manifest import read_again, require_same
from fedclient.rpc.download import Download
from fedclient.training.task import Task
from fedpvr.v1 import federation_pb2 as pb

ON_THE_WAY = (
    Fault.BAD_CHECKSUM,
    Fault.WRONG_OFFSET,
    Fault.MALFORMED,
    Fault.TOO_MANY_BYTES,
    Fault.TOO_FEW_BYTES,
)
"""What a bad link can do to good chunks: worth another try."""


@dataclass(frozen=True, eq=False)
class ReceivedRound:
    """A round to take part in."""

    task: Task
    derives_c: bool
    """c did not come with the round; it is to be computed."""
    counted_round: int
    """The last round whose update of this client entered x and c; its c_i is the valid one."""
    lost_variate: Flat | None
    """That c_i from the server, for a client that no longer holds it."""
    frozen: Flat | None = None
    """The tensors that stay as they are, for a client that had asked for them."""
    seconds: float = 0.0
    """How long the tensors took to come."""

    @property
    def canary_seconds(self) -> float | None:
        """The same for a rehearsal, which asks for it; None for a round."""
        return self.seconds if self.task.rules.canary else None


@dataclass(frozen=True)
class UpdateLost:
    """The server was restarted and no longer has this client's update for a round."""

    round: int


@dataclass(frozen=True)
class RunEnded:
    """The run is over."""

    round: int
    accuracy: float
    reason: str
    """Why it ended before its last round; empty if it did not."""
    best: tuple[int, float] | None = None
    """The round with the best model, and its accuracy."""
    took_part: int | None = None
    """Rounds with updates of this client in them."""


def receive_round(
    header: pb.RoundHeader,
    messages: Iterator[bytes],
    model: Layout,
    download: Download,
    frozen: Layout = NOTHING,
) -> ReceivedRound:
    """Reads the stream behind a header, after checking all that the header announces."""
    started = time.monotonic()
    announced = read_again(header.tensors)
    layout = _checked_layout(announced, model, frozen)
    rules = Rules.from_header(header)
    method = rules.method
    own = announced.layout.part(Purpose.CLIENT_CONTROL)
    if own.specs and own.specs != method.variates(layout).specs:
        raise WireError.broken_contract("the client's variate must have the tensors that the algorithm keeps")
    download.begin(header, announced)
    _receive_chunks(messages, download)
    raw = download.finish()
    flat = raw if announced.plain else announced.decode(raw, None, reused(announced.layout))
    task = Task(
        rules=rules,
        layout=layout,
        broadcast=flat[: layout.num_bytes],
        encoding=rules.update_encoding(layout),
    )
    own_end = layout.num_bytes + own.num_bytes
    return ReceivedRound(
        task,
        any(tensor_encoding.codec == DERIVED for tensor_encoding in announced.tensor_encodings),
        header.counted_round,
        flat[layout.num_bytes : own_end] if own.specs else None,
        flat[own_end:].copy() if frozen.specs else None,
        time.monotonic() - started,
    )


def _receive_chunks(messages: Iterator[bytes], download: Download) -> None:
    for message in messages:
        try:
            for frame in frames_in(message):
                chunk = read_chunk(frame)
                if chunk is None:
                    raise WireError.malformed("after the header only chunks may follow")
                download.add(chunk)
        except WireError as error:
            if error.fault not in ON_THE_WAY:
                raise
            raise UnavailableError(f"{error}; asking for it again") from error


def _checked_layout(announced: Encoding, model: Layout, frozen: Layout) -> Layout:
    """The layout of x, buffers and c, after checking that all of it belongs to the model.

    Frozen tensors come if they were asked for, and never otherwise.
    """
    layout = announced.layout.part(Purpose.MODEL, Purpose.BUFFER, Purpose.CONTROL)
    came = announced.layout.part(Purpose.MODEL, Purpose.BUFFER)
    require_same(Encoding(came), Encoding(model))
    known = {spec.name: spec for spec in model.specs if spec.purpose is Purpose.MODEL}
    for k in layout.indices(Purpose.CONTROL):
        spec = layout.specs[k]
        match = known.get(spec.name)
        if match is None or (spec.dtype, spec.shape) != (match.dtype, match.shape):
            raise WireError(Fault.UNKNOWN_TENSOR, "is not a parameter of the model", spec.name)
    own = announced.layout.part(Purpose.CLIENT_CONTROL)
    require_same(Encoding(announced.layout.part(Purpose.FROZEN)), Encoding(frozen))
    if announced.layout.specs != (*layout.specs, *own.specs, *frozen.specs):
        raise WireError.broken_contract("the tensors of x, c, c_i and frozen ones must come in this order")
    for spec, tensor_encoding in zip(announced.layout.specs, announced.tensor_encodings, strict=True):
        derived = tensor_encoding.codec == DERIVED and spec.purpose is not Purpose.CONTROL
        coded = tensor_encoding.codec.lossy and spec.purpose is Purpose.FROZEN
        if tensor_encoding.difference or derived or coded:
            raise WireError.broken_contract("must come whole, not as a difference or derived", spec.name)
    return layout
