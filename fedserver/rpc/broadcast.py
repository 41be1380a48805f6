"""A round as one client gets it: a header with its settings, and the frames of x, c and c_i that it needs."""

from __future__ import annotations

from common.tensors.layout import Purpose
from common.wire.chunks import Frame, chunk_frames
from common.wire.encoding import Encoding, without_control
from common.wire.manifest import manifest
from fedpvr.v1 import federation_pb2 as pb
from fedpvr.v1 import tensor_pb2
from fedserver.run.round import Round
from fedserver.run.run import Run
from fedserver.run.seats import Member


def broadcast(
    run: Run, current: Round, member: Member, request: pb.PullRoundRequest
) -> tuple[pb.RoundHeader, list[Frame]]:
    """The header for one client and the frames it needs."""
    encoding, frames, variates = run.down, current.frames, run.variates
    # Round 1 comes after round 0, and c is zero then.
    if current.derivable and request.after_round == current.number - 1:
        encoding = without_control(encoding)
        control = encoding.layout.indices(Purpose.CONTROL)
        frames = [frame for frame in frames if frame.position[0] not in control]
    tensors = manifest(encoding)
    counted = variates.counted.get(member.index, 0)
    held = set(request.held_rounds) or {request.after_round}
    c_i = variates.read(member.index) if counted not in {0} | held else None
    if c_i is not None:
        # What its client no longer holds.
        frames = [*frames, *chunk_frames(variates.layout, c_i, first_index=len(tensors))]
        tensors += manifest(Encoding(variates.layout))
    header = _header(run, current, counted, tensors)
    position = request.resume.position
    start = (position.tensor, position.offset)
    starts = {frame.position for frame in frames} | {(len(tensors), 0)}
    if request.resume.round == current.number and start in starts:
        header.resumed_at.CopyFrom(position)
        frames = [frame for frame in frames if frame.position >= start]
    return header, frames


def _header(run: Run, current: Round, counted: int, tensors: list[tensor_pb2.TensorSpec]) -> pb.RoundHeader:
    config = run.config
    codecs = config.codecs
    header = pb.RoundHeader(
        round=current.number,
        rounds=config.rounds,
        batch_size=config.batch_size or 0,
        eta_l=run.eta_l(current.number),
        momentum=config.momentum,
        augment=run.prepared.augment,
        counted_round=counted,
        tensors=tensors,
        algorithm=config.algorithm,
        prox_weight=config.prox_weight,
        validation=config.validation,
        update_codec="" if codecs.up == "fp32" else codecs.up,
        control_codec="" if codecs.control == "fp32" else codecs.control,
        derived=config.variates == "derived",
        num_clients=config.num_clients,
        eta_g=config.eta_g,
        weighting=config.weighting,
        aggregation="" if config.aggregation == "mean" else config.aggregation,
        norm_bound=config.norm_bound or 0.0,
    )
    if config.local_steps is not None:
        header.local_steps = config.local_steps
    else:
        header.local_epochs = config.local_epochs or 1
    return header
