"""What a client learns by joining a run, and what must be so in the server's answer."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from common.errors import WireError
from common.models.spec import ModelSpec
from fedpvr.v1 import federation_pb2 as pb

MAX_SHARD = 1 << 24
"""Examples; their numbers make a message of almost the largest size."""


@dataclass(frozen=True)
class Seat:
    """What a client learns by joining."""

    run_id: str
    index: int
    num_clients: int
    seed: int
    model: ModelSpec
    fingerprint: str
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dataset: str | None
    """None for a client with data of its own."""
    indices: list[int]
    lease_s: float = 0.0
    """A client that is silent for longer is not waited for; 0: there is no such limit."""
    sign_s: float = 0.0
    """A client that works gives a sign of life so often; 0: the server asks for none."""
    personal: tuple[str, ...] = ()
    """Tensors that stay here."""
    frozen: tuple[str, ...] = ()
    """Tensors that stay as they are."""
    frozen_digest: str = ""
    """Of their values."""
    evaluates: bool = False
    """Whether the server has no data, so that its clients evaluate x."""
    loss: str = ""
    """module:function of the client's, in place of the cross-entropy."""
    transform: str = ""
    """The same, for its examples."""
    rounds: int = 0
    """R."""
    takes_bundles: bool = False
    """Whether the server takes messages with several chunks."""

    @property
    def functions(self) -> list[tuple[str, str]]:
        """Code of the client's that the server names, with what it is for."""
        named = [("loss", self.loss), ("transform", self.transform)]
        return [(kind, name) for kind, name in named if name]


def seat_of(reply: pb.JoinReply) -> Seat:
    """The seat in an answer; raises for one that breaks the contract."""
    if not re.fullmatch(r"[0-9a-f]{1,64}", reply.run_id):
        raise WireError.broken_contract(f"a run id has hexadecimal digits, got {reply.run_id[:64]!r}")
    if len(reply.shard.indices) > MAX_SHARD:
        raise WireError.broken_contract(f"a shard has {MAX_SHARD} examples at the most")
    _require_times(reply)
    return Seat(
        run_id=reply.run_id,
        index=reply.index,
        num_clients=reply.num_clients,
        seed=reply.seed,
        model=model_spec(reply.model),
        fingerprint=reply.model.fingerprint,
        class_names=tuple(reply.model.class_names),
        mean=tuple(reply.model.mean),
        std=tuple(reply.model.std),
        dataset=reply.shard.dataset if reply.HasField("shard") else None,
        indices=list(reply.shard.indices),
        lease_s=reply.lease_seconds,
        sign_s=reply.sign_seconds,
        personal=tuple(reply.model.personal),
        frozen=tuple(reply.model.frozen),
        frozen_digest=reply.model.frozen_sha256,
        evaluates=reply.HasField("site_task"),
        loss=reply.site_task.loss,
        transform=reply.site_task.transform,
        rounds=reply.rounds,
        takes_bundles=reply.takes_bundles,
    )


def model_spec(message: pb.ModelSpec) -> ModelSpec:
    """What a server says of its model, not looked at yet."""
    return ModelSpec(
        name=message.name,
        num_classes=message.num_classes,
        image_shape=tuple(message.image_shape),
        dtype=message.dtype,
        width=message.width,
    )


def _require_times(reply: pb.JoinReply) -> None:
    if not 0 <= reply.lease_seconds < math.inf:
        raise WireError.broken_contract(f"a lease has a length in seconds, got {reply.lease_seconds}")
    if not 0 <= reply.sign_seconds < math.inf:
        raise WireError.broken_contract(f"signs are seconds apart, got {reply.sign_seconds}")
