"""A round as one client gets it: a header with its rules, and messages with x, c and a c_i that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from common.tensors.classes import NONE_FROZEN, FrozenTensors
from common.tensors.layout import NOTHING, Flat, Layout, Purpose
from common.wire.bundles import Bundle, bundles
from common.wire.chunks import CHUNK_BYTES, START, Position
from common.wire.encoding import Encoding, without_control
from common.wire.manifest import manifest
from fedpvr.v1 import federation_pb2 as pb
from fedserver.members.seats import Member
from fedserver.run.round import Round
from fedserver.run.run import Run

T = TypeVar("T")
Made = Callable[[Run, Round, Member, pb.PullRoundRequest, Flat | None], tuple[pb.RoundHeader, T]]
"""Makes the header of a round for one client, who may have lost its c_i, and its tensors as they reach it."""


@dataclass(frozen=True)
class Announced:
    """What one client gets of a round: x, buffers and c, then its c_i if it lost it, then frozen tensors."""

    header: pb.RoundHeader
    encoding: Encoding
    """Of x, buffers and c."""
    own: Layout
    """Of `c_i`; no tensors where none is sent."""
    c_i: Flat | None
    frozen: FrozenTensors

    @property
    def sent(self) -> Layout:
        """x, buffers and c as they travel."""
        return self.encoding.encoded


def needs_c_i(run: Run, current: Round, member: Member, request: pb.PullRoundRequest) -> bool:
    """Whether a client has lost its c_i, and trains with it now."""
    held = set(request.held_rounds) or {request.after_round}
    return not current.rules.evaluation_only and run.variates.has_lost(member.index, held)


def announced(
    run: Run, current: Round, member: Member, request: pb.PullRoundRequest, c_i: Flat | None
) -> Announced:
    """What a client needs, and the header that says so."""
    encoding, variates = run.down, run.variates
    if current.rules.evaluation_only:
        encoding = encoding.part(Purpose.MODEL, Purpose.BUFFER)
    elif current.rules.gradient_only or not current.needs_c(request.after_round):
        encoding = without_control(encoding)
    own = variates.layout if c_i is not None else NOTHING
    frozen = run.frozen if request.needs_frozen else NONE_FROZEN
    header = current.rules.to_header()
    header.counted_round = variates.counted.get(member.index, 0)
    for each in (encoding, Encoding(own), Encoding(frozen.layout)):
        header.tensors.extend(manifest(each))
    return Announced(header, encoding, own, c_i, frozen)


def broadcast(
    run: Run, current: Round, member: Member, request: pb.PullRoundRequest, c_i: Flat | None
) -> tuple[pb.RoundHeader, Iterator[Bundle]]:
    """The header for one client and the messages with the chunks that it needs."""
    what = announced(run, current, member, request, c_i)
    header, tensors, frozen = what.header, what.header.tensors, what.frozen
    sent = what.sent.specs
    positions = [position for position in current.positions if sent[position[0]].num_bytes]
    own: list[Bundle] = []
    if what.c_i is not None:
        own = [*bundles(what.own, what.c_i, first_index=len(sent))]
    first_frozen = len(sent) + len(what.own.specs)
    position = request.resume.position
    start = (position.tensor, position.offset)
    starts = {(len(tensors), 0)} | _chunk_starts(what.sent, 0) | _chunk_starts(what.own, len(sent))
    starts |= _chunk_starts(frozen.layout, first_frozen)
    if request.resume.round == current.number and start in starts:
        header.resumed_at.CopyFrom(position)
    else:
        start = START
    # Frozen ones are made for each client anew: each gets them once.
    behind = bundles(frozen.layout, frozen.flat, first_index=first_frozen, start=start)
    # Those of the round one by one: whoever reads slowly does not keep those of a round that is over.
    shared = (current.bundle(position) for position in positions)
    found = chain(_behind(shared, start), _behind(own, start), behind)
    return header, found if request.takes_bundles else chain.from_iterable(map(Bundle.one_by_one, found))


def _chunk_starts(layout: Layout, first_index: int) -> set[Position]:
    return {
        (first_index + k, offset)
        for k, spec in enumerate(layout.specs)
        for offset in range(0, spec.num_bytes, CHUNK_BYTES)
    }


def _behind(found: Iterable[Bundle], start: Position) -> Iterator[Bundle]:
    """Without what has come before `start`."""
    for bundle in found:
        left = bundle.behind(start)
        if left is not None:
            yield left
