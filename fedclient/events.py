"""What happens to a client, as events; the order here is that of a client's life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level


def _round(r: int) -> str:
    """What is trained: a round or, before the first, a rehearsal."""
    return f"round {r}" if r else "canary"


@dataclass(frozen=True, kw_only=True)
class Joining(Event):
    """The client asks for a seat for the first time."""

    server: str

    def text(self) -> str:
        return f"joining {self.server} as {self.client}"


@dataclass(frozen=True, kw_only=True)
class Joined(Event):
    """The client has a seat in a run that is new to it, and everything ready for it."""

    index: int
    num_clients: int
    examples: int
    model: str

    def text(self) -> str:
        return (
            f"run {self.run}: client {self.index + 1} of {self.num_clients}, "
            f"{self.examples} examples, {self.model}"
        )


@dataclass(frozen=True, kw_only=True)
class StoredUpdateFound(Event):
    """An earlier process of this client has left an update that nobody answered for."""

    def text(self) -> str:
        return f"round {self.round}: handing in the update that an earlier process left"


@dataclass(frozen=True, kw_only=True)
class StoredUpdateDamaged(Event):
    """An earlier process has left an update that cannot be used."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"the update in the state directory {self.reason}; training its round again"


@dataclass(frozen=True, kw_only=True)
class ConnectionLost(Event):
    """The first failure after the server was last heard of, or a fault that was found; no others are told."""

    level: ClassVar[Level] = Level.WARNING
    give_up_s: float

    def text(self) -> str:
        return f"{self.reason}; trying again for {self.give_up_s:.0f} s"


@dataclass(frozen=True, kw_only=True)
class LeavingUnheard(Event):
    """The client ends for good and could not tell the server so."""

    level: ClassVar[Level] = Level.DETAIL

    def text(self) -> str:
        return f"the server does not know that this client leaves: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class UpdateAskedFor(Event):
    """A restarted server no longer has an update that it had taken."""

    in_hand: bool
    """Whether the client still has it too."""

    def text(self) -> str:
        what = "handing the update in again" if self.in_hand else "training it again"
        return f"round {self.round}: the server was restarted; {what}"


@dataclass(frozen=True, kw_only=True)
class VariateReturned(Event):
    """The client has c_i of this round from the server: it had lost its own, or that does not count."""

    clipped: bool
    """Whether its update was too large, so that another c_i counts than the client computed."""
    changing: bool = False
    """Whether the server chooses S_svr anew after each round, so that c_i is for another S_svr, perhaps."""

    def text(self) -> str:
        if self.changing:
            return f"the variate after round {self.round} is the server's, for the S_svr of now"
        if self.clipped:
            return f"the update of round {self.round} was too large to count in full; its c_i is the server's"
        return f"the variate of round {self.round} came back from the server"


@dataclass(frozen=True, kw_only=True)
class ResidualsLost(Event):
    """The client has lost what coding left out of its updates up to this round, which nobody else has."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"what coding left out up to round {self.round} is lost; going on without it"


@dataclass(frozen=True, kw_only=True)
class PersonalLost(Event):
    """The client has lost its personal tensors, which nobody else has."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"the personal tensors of round {self.round} are lost; they start again from the seed"


@dataclass(frozen=True, kw_only=True)
class StateDamaged(Event):
    """A c_i on disk, or what coding left out, is not as it was written."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"{self.reason}; going on without it, with the server's copy of c_i"


@dataclass(frozen=True, kw_only=True)
class TrainingStarted(Event):
    """Local training of a round begins."""

    level: ClassVar[Level] = Level.DETAIL

    def text(self) -> str:
        return f"{_round(self.round)}: training"


@dataclass(frozen=True, kw_only=True)
class RoundTrained(Event):
    """There is an update, and it is in the state directory."""

    steps: int
    loss: float
    seconds: float

    def text(self) -> str:
        return f"{_round(self.round)}: {self.steps} steps, loss {self.loss:.4f}, {self.seconds:.1f} s"


@dataclass(frozen=True, kw_only=True)
class Diverged(Event):
    """Training left the finite numbers."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"round {self.round}: {self.reason}; no update this time"


@dataclass(frozen=True, kw_only=True)
class UploadResumed(Event):
    """An upload that broke off goes on where it was."""

    arrived_bytes: int
    total_bytes: int

    def text(self) -> str:
        done, total = f"{self.arrived_bytes:,}", f"{self.total_bytes:,}"
        return f"round {self.round}: going on with the upload after {done} of {total} bytes"


@dataclass(frozen=True, kw_only=True)
class UploadDamaged(Event):
    """An update did not arrive as it was sent, and is sent again."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"round {self.round}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class UpdateRejected(Event):
    """The server will not have an update."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"round {self.round}: update rejected: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class UpdateLate(Event):
    """An update came after its round had closed."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"round {self.round}: the round has closed; this update changes nothing"


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The run went through to its last round."""

    accuracy: float | None
    """None if the server has not evaluated the model."""
    best: tuple[int, float] | None
    took_part: int | None

    def text(self) -> str:
        accuracy = f", accuracy {self.accuracy:.2%}" if self.accuracy is not None else ""
        best = f" (best {self.best[1]:.2%} after round {self.best[0]})" if self.best else ""
        rounds = "1 round" if self.took_part == 1 else f"{self.took_part} rounds"
        own = f"; took part in {rounds}" if self.took_part is not None else ""
        return f"run finished after round {self.round}{accuracy}{best}{own}"


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """A signal ends the client; `reason` is what it was doing."""

    signal: str
    server_knows: bool

    def text(self) -> str:
        knows = "the server knows" if self.server_knows else "the server does not know"
        return (
            f"stopped by {self.signal} while {self.reason}; {knows}; "
            "what counts is saved, and the same command goes on from there"
        )
