"""The note in a checkpoint: everything about a round that is not a tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from common.records.base import Count, Positive, Record
from common.records.rounds import RoundRecord
from common.records.sites import SiteCounts
from common.server_step.adaptive import Choice


@dataclass(frozen=True, kw_only=True)
class CheckpointNote(Record):
    """In the metadata of checkpoints/round-RRRRRR.safetensors, under `checkpoint`."""

    round: Count
    """Number of the round, from 1; 0 before it, where clients started with gradients (`--warm-variates`)."""
    counted: dict[int, Count]
    """The last round that each client's update counted in, by client index; 0 for what it started with."""
    norms: dict[int, float | None]
    """Euclidean norms of the c_i, by client index."""
    changed: tuple[Count, ...] = ()
    """Indices of clients of whose last update not all counted, so that they have computed another c_i."""
    evicted: tuple[Count, ...] = ()
    """Indices of members that the operator has taken out of c."""
    strikes: dict[int, Positive] = field(default_factory=dict)
    """Rounds in which updates were far too large and that are not made up for yet, by client index."""
    shared: bool
    """Whether c follows from what x did in this round."""
    total_weight: float | None = None
    """What all N clients together count in c: N, or their examples; missing in the first format."""
    closing: RoundRecord | None
    """What rounds.jsonl says of the round, before x is evaluated; null before round 1."""
    sites: dict[str, SiteCounts] | None = None
    """What clients counted, as the round began, of the x of the round before; rounds.jsonl has it there."""
    has_h: bool
    """Whether the file holds the server's own state h (FedDyn)."""
    choice: Choice | None = None
    """With --svr auto: S_svr of the next round, whose c the file holds, and what its rule remembers."""
    crc32c: Count | None = None
    """Of all tensors, in files of a release before the metadata itself had a `crc32c`."""

    @classmethod
    def from_first(cls, value: Any) -> Any:
        """`closing` had no round and no evaluation of its own."""
        try:
            start = {"round": value["round"], "accuracy": None, "loss": None}
            return value | {"closing": start | value["closing"]}
        except (KeyError, TypeError):
            return value
