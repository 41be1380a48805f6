"""What happens in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level
from fedserver.events.clients import listed


@dataclass(frozen=True, kw_only=True)
class RoundOpened(Event):
    """Clients can pull a round."""

    level: ClassVar[Level] = Level.DETAIL
    clients: int
    """Those whose updates the round is for."""

    def text(self) -> str:
        return f"round {self.round}: open for {self.clients} clients"


@dataclass(frozen=True, kw_only=True)
class UpdateAccepted(Event):
    """An update is whole, checked and on disk."""

    level: ClassVar[Level] = Level.DETAIL
    loss: float

    def text(self) -> str:
        return f"round {self.round}: update of {self.client} is in, train loss {self.loss:.4f}"


@dataclass(frozen=True, kw_only=True)
class UpdateDeclined(Event):
    """A client says that it has no update for this round."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"round {self.round}: {self.client} has no update: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class SvrChanged(Event):
    """With --svr auto: the server has chosen another S_svr for the rounds after this one."""

    entered: tuple[str, ...]
    """Names that have variance reduction from now on."""
    left: tuple[str, ...]
    """Names that have none any more."""
    tensors: int
    """How many are in it now."""
    share: float
    """What it has of the bytes of x."""

    def text(self) -> str:
        moves = [f"{', '.join(self.entered)} in"] if self.entered else []
        moves += [f"{', '.join(self.left)} out"] if self.left else []
        told = f"{self.tensors} tensors, {self.share:.1%} of x: {'; '.join(moves)}"
        return f"round {self.round}: the next S_svr has {told}"


@dataclass(frozen=True, kw_only=True)
class UpdateClipped(Event):
    """An update is too large, or earlier ones were, so that it counts less."""

    level: ClassVar[Level] = Level.WARNING
    times_usual: float
    bound: float
    share: float
    """What is left of its weight."""

    def text(self) -> str:
        size = f"it is {self.times_usual:.3g} times as large as is usual, --norm-bound is {self.bound:g}"
        if self.times_usual <= self.bound:
            size = "earlier ones were far too large, and this is not made up for yet"
        return f"round {self.round}: the update of {self.client} counts {self.share:.1%}: {size}"


@dataclass(frozen=True, kw_only=True)
class ClientExcused(Event):
    """The round does not wait for a client any longer."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"round {self.round}: goes on without {self.client}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class QuorumMissed(Event):
    """Nobody else can be expected, but too few updates are in."""

    level: ClassVar[Level] = Level.WARNING
    updates: int
    needed: int

    def text(self) -> str:
        return (
            f"round {self.round}: {self.updates} updates and nobody else to expect; "
            f"waiting until there are {self.needed}"
        )


@dataclass(frozen=True, kw_only=True)
class QuorumLost(Event):
    """So many clients have left that the round cannot close unless some of them come back."""

    level: ClassVar[Level] = Level.WARNING
    left: Sequence[str]
    needed: int
    patience_s: float

    def text(self) -> str:
        return (
            f"round {self.round}: {self.needed} clients are needed and too many have left; "
            f"waiting {self.patience_s:.0f} s for {listed(self.left)}"
        )


@dataclass(frozen=True, kw_only=True)
class RoundHeldUp(Event):
    """A round waits for clients that take much longer than the others; `clients` says what they do."""

    clients: Sequence[str]
    updates: int
    drawn: int
    seconds: float

    def text(self) -> str:
        return (
            f"round {self.round} has waited {self.seconds:.0f} s and waits for {listed(self.clients)}; "
            f"{self.updates} of {self.drawn} in"
        )


@dataclass(frozen=True, kw_only=True)
class RoundClosed(Event):
    """A round counts, and its record is written."""

    rounds: int
    accuracy: float | None
    validation_accuracy: float | None
    train_loss: float
    updates: int
    down_bytes: int
    up_bytes: int
    seconds: float

    def text(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.2%}, "
        if self.validation_accuracy is not None:
            accuracy += f"validation accuracy {self.validation_accuracy:.2%}, "
        return (
            f"round {self.round}/{self.rounds}: {accuracy}train loss {self.train_loss:.4f}, "
            f"{self.updates} updates, {self.down_bytes / 1e6:.2f} MB down, {self.up_bytes / 1e6:.2f} MB up, "
            f"{self.seconds:.1f} s"
        )


@dataclass(frozen=True, kw_only=True)
class SitesEvaluated(Event):
    """Clients have evaluated the x of a round, each on data of its own."""

    rounds: int
    sites: int
    examples: int
    metrics: Mapping[str, float | None]
    worst: str
    judge: str
    worst_value: float | None

    def text(self) -> str:
        known = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items() if value is not None)
        worst = (
            "" if self.worst_value is None else f"; worst {self.worst}, {self.judge} {self.worst_value:.4f}"
        )
        where = f"{self.sites} sites with {self.examples} examples"
        return f"round {self.round}/{self.rounds}: {known} at {where}{worst}"


@dataclass(frozen=True, kw_only=True)
class BestKept(Event):
    """The x of a round is better than all before, and is kept."""

    metric: str
    value: float

    def text(self) -> str:
        return (
            f"round {self.round}: {self.metric} {self.value:.4f} is the best so far; best.safetensors has it"
        )


@dataclass(frozen=True, kw_only=True)
class RoundEvaluated(Event):
    """A round that was recorded before has its accuracy now."""

    rounds: int
    accuracy: float
    seconds: float

    def text(self) -> str:
        took = f"evaluated in {self.seconds:.1f} s"
        return f"round {self.round}/{self.rounds}: accuracy {self.accuracy:.2%}, {took}"


@dataclass(frozen=True, kw_only=True)
class RunDiverged(Event):
    """Training left the finite numbers, and the run ends with the rounds before; exit code 4."""

    level: ClassVar[Level] = Level.WARNING
    reason: str

    def text(self) -> str:
        return f"round {self.round}: training has diverged; the rounds before it count"
