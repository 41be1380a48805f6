"""The reply to Join: a seat, and everything a client needs to build the model and find its data."""

from __future__ import annotations

from common.errors import WrongRunError
from common.tensors.classes import TensorClass
from common.wire.chunks import PROTOCOL_VERSION
from fedpvr.v1 import federation_pb2 as pb
from fedserver.config import RunConfig
from fedserver.members.members import Members
from fedserver.members.seated import Seated
from fedserver.members.seats import Member, OwnData
from fedserver.run.run import Run


def write_members(run: Run, members: Seated) -> None:
    """config.json, with the seats as they are now."""
    run.run_dir.write_config(run.record(members.in_order(), members.example_limit))


def own_data(request: pb.JoinRequest) -> OwnData | None:
    """What a client tells of the data it brings, if it brings any."""
    if not request.HasField("own_data"):
        return None
    own, test = request.own_data, request.test_examples if request.evaluates else None
    return OwnData(own.examples, tuple(own.class_names), test)


def _site_task(config: RunConfig) -> pb.SiteTask | None:
    """How clients treat their data, where the server has none."""
    return pb.SiteTask(loss=config.loss or "", transform=config.transform or "") if config.has_task else None


def write_seats(run: Run, members: Members) -> None:
    """A seat that was given after the start is on disk before its client hears of it."""
    if members.unwritten:
        try:
            write_members(run, members)
        except OSError:
            members.unseat_unwritten()
            raise
        members.written_down()


def require_version(version: int) -> None:
    """Raises for a client that speaks otherwise."""
    if version != PROTOCOL_VERSION:
        raise WrongRunError(
            f"this server speaks protocol version {PROTOCOL_VERSION}, the client {version}; "
            "install the same release on both"
        )


def model_message(run: Run) -> pb.ModelSpec:
    """What a client needs to build the model."""
    prepared = run.prepared
    return pb.ModelSpec(
        name=prepared.model.name,
        num_classes=prepared.model.num_classes,
        image_shape=prepared.model.image_shape,
        dtype=prepared.model.dtype,
        width=prepared.model.width,
        fingerprint=run.fingerprint,
        class_names=prepared.class_names,
        mean=prepared.mean,
        std=prepared.std,
        personal=run.classes.names(TensorClass.PERSONAL),
        frozen=run.classes.names(TensorClass.FROZEN),
        frozen_sha256=run.frozen.digest,
    )


def seat_reply(run: Run, member: Member, sign_s: float) -> pb.JoinReply:
    """What a member is told of its seat."""
    config = run.config
    shard = None if member.shard is None else pb.Shard(dataset=config.dataset, indices=member.shard)
    return pb.JoinReply(
        run_id=run.id,
        index=member.index,
        num_clients=config.num_clients,
        rounds=config.rounds,
        seed=config.seed,
        model=model_message(run),
        shard=shard,
        site_task=_site_task(config),
        lease_seconds=config.lease or 0.0,
        sign_seconds=sign_s,
        takes_bundles=True,
    )
