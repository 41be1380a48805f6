"""What pages are told, as types; `common.records.form` makes JSON of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.live.record import LiveRecord, LoggedEvent


@dataclass(frozen=True, kw_only=True)
class DirectionBytes:
    """Bytes of a round in one direction."""

    model: int
    buffer: int
    control: int
    other: int
    """With everything that has no name here."""


@dataclass(frozen=True, kw_only=True)
class RoundPoint:
    """A closed round as a point of every curve."""

    round: int
    accuracy: float | None
    loss: float | None
    train_loss: float
    validation: float | None
    seconds: float
    updates: int
    absent: int
    down: DirectionBytes
    up: DirectionBytes
    total: int
    """Bytes up to here, both ways."""
    fedavg: int
    """What FedAvg would have sent up to here."""
    scaffold: int
    c: float | None
    """Norm of c."""
    c_i: tuple[float, float, float] | None
    """Smallest, median and largest norm of a c_i."""
    drift: tuple[float | None, ...]
    """By layer, in the order of `RunMessage.layers`."""


@dataclass(frozen=True, kw_only=True)
class ClientStanding:
    """What the closed rounds say of a client."""

    name: str
    took_part: int
    """Rounds that its update counted in."""
    uncounted: int
    """Rounds in which nothing of it counted."""
    uncounted_reason: str
    missed: int
    reason: str
    """Why it was not in the last round that it missed."""
    norm: float | None
    """Of its c_i."""
    metric: str
    """Name of what it reported last of x on its own data; empty if it reports nothing."""
    value: float | None
    bytes: int
    """Both ways, in the rounds that are added up so far."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Whose data are how much."""

    name: str
    examples: int
    classes: tuple[int, ...] | None
    evicted_in: int | None


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a run is, from config.json."""

    run_id: str
    algorithm: str
    model: str
    dataset: str
    variates: str
    rounds: int
    num_clients: int
    codec: tuple[str, ...]
    class_names: tuple[str, ...]
    svr_names: tuple[str, ...]
    svr_layers: tuple[str, ...]
    shards: tuple[Shard, ...]
    unlisted: int
    """Clients beyond these."""


@dataclass(frozen=True, kw_only=True)
class TensorBytes:
    """Bytes of a tensor, or of a kind of message."""

    name: str
    purpose: str
    svr: bool
    down: int
    up: int


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """What traffic.jsonl adds up to so far."""

    rounds: int
    tensors: tuple[TensorBytes, ...]
    """Those with most bytes."""
    unlisted: int


@dataclass(frozen=True, kw_only=True)
class BestSoFar:
    """The best evaluation."""

    round: int
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class RunMessage:
    """News of a run. A key that is missing has not changed."""

    run: int
    """Its place in the list."""
    now: float
    """The dashboard's clock, in seconds since 1970: ages on the page are by it."""
    name: str
    whole: bool = False
    """Whether this replaces everything that was told before."""
    alive: bool | None = None
    finished: bool = False
    seconds_left: float | None = None
    closed: int = 0
    """Rounds."""
    down: DirectionBytes
    """Bytes of all closed rounds."""
    up: DirectionBytes
    head: Head | None = None
    live: LiveRecord | None = None
    best: BestSoFar | None = None
    layers: tuple[str, ...] | None = None
    points: tuple[RoundPoint, ...] = ()
    """New ones, or such as have changed."""
    standings: tuple[ClientStanding, ...] | None = None
    bytes: Bytes | None = None
    events: tuple[LoggedEvent, ...] = field(default=())
    trouble: str = ""
    """What cannot be read."""
