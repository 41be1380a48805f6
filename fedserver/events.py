"""What happens at a server, as typed events; the text is what people read in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level


@dataclass(frozen=True, kw_only=True)
class Listening(Event):
    """The server can be reached."""

    address: str

    def text(self) -> str:
        return f"listening on {self.address}"


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A run has begun, or goes on in a new process."""

    algorithm: str
    model: str
    dataset: str
    run_dir: str

    def text(self) -> str:
        what = f"{self.algorithm}, {self.model} on {self.dataset}"
        return f"run {self.run}: {what}, results in {self.run_dir}"


@dataclass(frozen=True, kw_only=True)
class MomentumIgnored(Event):
    """Momentum is asked for, but S_svr, which never has any, is all there is."""

    level: ClassVar[Level] = Level.WARNING
    momentum: float

    def text(self) -> str:
        why = "momentum is for parameters outside of S_svr, and all are in it"
        return f"--momentum {self.momentum:g} has no effect: {why}"


@dataclass(frozen=True, kw_only=True)
class ClientsAwaited(Event):
    """The run waits for clients before its first round; `client` has just come, if it is named."""

    here: int
    needed: int
    at_least: bool
    """Whether more may take part than are needed."""

    def text(self) -> str:
        seats = f"{self.here} of {'at least ' if self.at_least else ''}{self.needed} clients"
        if self.client:
            return f"{self.client} is here; {seats}"
        return f"waiting for clients; {seats} are here"


@dataclass(frozen=True, kw_only=True)
class ClientsGathered(Event):
    """Nobody else has come for a while: N is known."""

    here: int

    def text(self) -> str:
        return f"{self.here} clients are here and nobody else comes; they make up the run"


@dataclass(frozen=True, kw_only=True)
class ClientJoined(Event):
    """A client has taken a seat after the start."""

    taken: int
    seats: int

    def text(self) -> str:
        return f"{self.client} joins; {self.taken} of {self.seats} seats are taken"


@dataclass(frozen=True, kw_only=True)
class ClientLeft(Event):
    """A client will not come back by itself."""

    def text(self) -> str:
        return f"{self.client} leaves: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class TurnedAway(Event):
    """A caller was refused."""

    level: ClassVar[Level] = Level.WARNING
    unsaid: int
    """Refusals for the same reason since the last such event."""

    def text(self) -> str:
        more = f" ({self.unsaid} more since the line before)" if self.unsaid else ""
        return f"turned away: {self.reason}{more}"


@dataclass(frozen=True, kw_only=True)
class RunResumed(Event):
    """A new process goes on after the last closed round."""

    rounds: int

    def text(self) -> str:
        return f"going on with run {self.run} after round {self.round} of {self.rounds}"


@dataclass(frozen=True, kw_only=True)
class CheckpointUnusable(Event):
    """A checkpoint is damaged, and an older one is tried."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"{self.reason}; going back to an older checkpoint"


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
class UpdateLeftOut(Event):
    """An update does not count because it is too large."""

    level: ClassVar[Level] = Level.WARNING
    times_median: float
    bound: float

    def text(self) -> str:
        size = f"its update is {self.times_median:.3g} times the median, the bound is {self.bound:g}"
        return f"round {self.round}: leaves out {self.client}: {size}"


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
class RoundClosed(Event):
    """A round counts, and its record is written."""

    rounds: int
    accuracy: float | None
    train_loss: float
    updates: int
    down_bytes: int
    up_bytes: int
    seconds: float

    def text(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.2%}, "
        return (
            f"round {self.round}/{self.rounds}: {accuracy}train loss {self.train_loss:.4f}, "
            f"{self.updates} updates, {self.down_bytes / 1e6:.2f} MB down, {self.up_bytes / 1e6:.2f} MB up, "
            f"{self.seconds:.1f} s"
        )


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """All rounds are over."""

    def text(self) -> str:
        return "run finished"


@dataclass(frozen=True, kw_only=True)
class RunStopped(Event):
    """A signal ended the process before the run was over."""

    signal: str
    run_dir: str

    def text(self) -> str:
        return f"stopped by {self.signal}; what was counted so far is in {self.run_dir}"
