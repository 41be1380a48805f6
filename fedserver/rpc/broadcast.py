"""A round as one client gets it: a header with its rules, and the frames of x, c and c_i that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from common.tensors.classes import NONE_FROZEN
from common.tensors.layout import Layout, Purpose
from common.wire.chunks import CHUNK_BYTES, START, Frame, Position, chunk_frames
from common.wire.encoding import Encoding, without_control
from common.wire.manifest import manifest
from fedpvr.v1 import federation_pb2 as pb
from fedserver.members.seats import Member
from fedserver.run.round import Round
from fedserver.run.run import Run


def broadcast(
    run: Run, current: Round, member: Member, request: pb.PullRoundRequest
) -> tuple[pb.RoundHeader, Iterator[Frame]]:
    """The header for one client and the frames it needs."""
    encoding, variates = run.down, run.variates
    positions = current.positions
    c_i = None
    if current.rules.evaluation_only:
        encoding = encoding.part(Purpose.MODEL, Purpose.BUFFER)
    elif not current.needs_c(request.after_round):
        encoding = without_control(encoding)
        control = encoding.layout.indices(Purpose.CONTROL)
        positions = [position for position in positions if position[0] not in control]
    own: list[Frame] = []
    tensors = manifest(encoding)
    counted = variates.counted.get(member.index, 0)
    held = set(request.held_rounds) or {request.after_round}
    if not current.rules.evaluation_only:
        c_i = variates.lost(member.index, held)
    if c_i is not None:
        own = [*chunk_frames(variates.layout, c_i, first_index=len(tensors))]
        tensors += manifest(Encoding(variates.layout))
    frozen = run.frozen if request.needs_frozen else NONE_FROZEN
    first_frozen = len(tensors)
    tensors += manifest(Encoding(frozen.layout))
    header = current.rules.to_header()
    header.counted_round = counted
    header.tensors.extend(tensors)
    position = request.resume.position
    start = (position.tensor, position.offset)
    starts = {*positions, *(frame.position for frame in own), (len(tensors), 0)}
    starts |= _chunk_starts(frozen.layout, first_frozen)
    if request.resume.round == current.number and start in starts:
        header.resumed_at.CopyFrom(position)
        positions = [position for position in positions if position >= start]
        own = [frame for frame in own if frame.position >= start]
    else:
        start = START
    # Frozen ones are made for each client anew: each gets them once.
    behind = chunk_frames(frozen.layout, frozen.flat, first_index=first_frozen, start=start)
    return header, _frames(current, positions, chain(own, behind))


def _chunk_starts(layout: Layout, first_index: int) -> set[Position]:
    return {
        (first_index + k, offset)
        for k, spec in enumerate(layout.specs)
        for offset in range(0, spec.num_bytes, CHUNK_BYTES)
    }


def _frames(current: Round, positions: list[Position], behind: Iterable[Frame]) -> Iterator[Frame]:
    """Frames one by one: whoever reads slowly does not keep those of a round that is over."""
    for position in positions:
        yield current.frame(position)
    yield from behind
