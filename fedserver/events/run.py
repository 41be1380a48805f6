"""What happens to the run and its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level
from fedserver.events.clients import listed
from fedserver.task import NO_DATA


def rounds(number: int) -> str:
    """So many rounds."""
    return "1 round" if number == 1 else f"{number} rounds"


@dataclass(frozen=True, kw_only=True)
class Listening(Event):
    """The server can be reached."""

    address: str

    def text(self) -> str:
        return f"listening on {self.address}"


@dataclass(frozen=True, kw_only=True)
class DashboardOpened(Event):
    """Browsers can look at runs."""

    url: str

    def text(self) -> str:
        return f"dashboard on {self.url}"


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A run has begun, or goes on in a new process."""

    algorithm: str
    model: str
    dataset: str
    run_dir: str

    def text(self) -> str:
        data = "data at the clients" if self.dataset == NO_DATA else self.dataset
        what = f"{self.algorithm}, {self.model} on {data}"
        return f"run {self.run}: {what}, results in {self.run_dir}"


@dataclass(frozen=True, kw_only=True)
class CertificateRenewed(Event):
    """The server has another certificate now, for those who connect from here on."""

    path: str

    def text(self) -> str:
        return f"{self.path} was renewed; whoever connects from now on sees the new one"


@dataclass(frozen=True, kw_only=True)
class MomentumIgnored(Event):
    """Momentum is asked for, but on no parameter that is trained: by default S_svr has none."""

    level: ClassVar[Level] = Level.WARNING
    momentum: float
    momentum_on: Sequence[str] = ()

    def text(self) -> str:
        where = " ".join(self.momentum_on)
        why = f"--momentum-on {where} selects none that is trained; give it a module's name, or all"
        if where in ("", "outside-svr"):
            why = "momentum is for parameters outside of S_svr, and all are in it; see --momentum-on"
        return f"--momentum {self.momentum:g} has no effect: {why}"


@dataclass(frozen=True, kw_only=True)
class InitIncomplete(Event):
    """Not all first values come from the file that was given."""

    path: str

    def text(self) -> str:
        return f"--init {self.path}: the rest starts from the seed ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class TensorsApart(Event):
    """Not all tensors are shared."""

    personal: int
    frozen: int
    shared: int
    reduced: int
    """Of those that are shared."""

    def text(self) -> str:
        told = f"{self.shared} tensors are shared, {self.personal} personal, {self.frozen} frozen; "
        told += f"{self.reduced} are in S_svr"
        why = "; x is not evaluated here, as clients keep a part of the model" if self.personal else ""
        return told + why


@dataclass(frozen=True, kw_only=True)
class RunResumed(Event):
    """A new process goes on after the last closed round."""

    rounds: int

    def text(self) -> str:
        return f"going on with run {self.run} after round {self.round} of {self.rounds}"


@dataclass(frozen=True, kw_only=True)
class FinishedBefore(Event):
    """A server was started on a run that has nothing left to train."""

    rounds: int
    accuracy: float | None
    run_dir: str

    def text(self) -> str:
        known = "" if self.accuracy is None else f", accuracy {self.accuracy:.2%}"
        done = f"{self.round} of {self.rounds} rounds{known}"
        another = "for another one give another --run-dir (with compose: RUN=name)"
        return f"run {self.run} in {self.run_dir} is finished ({done}); {another}"


@dataclass(frozen=True, kw_only=True)
class CheckpointUnusable(Event):
    """A checkpoint is damaged, and an older one is tried."""

    level: ClassVar[Level] = Level.WARNING

    def text(self) -> str:
        return f"{self.reason}; going back to an older checkpoint"


@dataclass(frozen=True, kw_only=True)
class FileSetAside(Event):
    """A file that grows by a line a round is damaged; the run goes on with what is good in it."""

    level: ClassVar[Level] = Level.WARNING
    path: str
    aside: str
    """What it is called now."""
    damaged: int
    good: int
    """Lines that were taken over."""

    def text(self) -> str:
        lines = f"{self.damaged} of {self.damaged + self.good} lines"
        return f"{self.path}: {lines} are damaged; going on with the others, the file is kept as {self.aside}"


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """All rounds are over; `round` is the last one that was evaluated."""

    accuracy: float | None
    best_accuracy: float | None
    best_round: int
    rounds: int
    seconds: float
    evaluation_seconds: float
    """What the evaluations took, beside the rounds."""
    down_bytes: int
    up_bytes: int

    def text(self) -> str:
        accuracy = ""
        if self.accuracy is not None and self.best_accuracy is not None:
            accuracy = f"accuracy {self.accuracy:.2%} (best {self.best_accuracy:.2%} after round "
            accuracy += f"{self.best_round}), "
        return (
            f"run finished: {accuracy}{rounds(self.rounds)} in {self.seconds:.0f} s, evaluation "
            f"{self.evaluation_seconds:.0f} s, "
            f"{self.down_bytes / 1e6:.2f} MB down, {self.up_bytes / 1e6:.2f} MB up"
        )


@dataclass(frozen=True, kw_only=True)
class TookPart(Event):
    """Who is in the model, and in how many rounds of it."""

    clients: Mapping[str, int]
    rounds: int
    seats: int

    def text(self) -> str:
        if set(self.clients.values()) == {self.rounds}:
            who = "all" if len(self.clients) == self.seats else f"{len(self.clients)} of"
            return f"{who} {self.seats} clients took part in every round"
        most = sorted(self.clients.items(), key=lambda item: -item[1])
        counts = listed([f"{name} in {count}" for name, count in most])
        return f"took part: {counts} of {rounds(self.rounds)}"


@dataclass(frozen=True, kw_only=True)
class ResultsReady(Event):
    """Where the model is, and what to do with it."""

    model: str
    run_dir: str

    def text(self) -> str:
        return f"the model is {self.model}; next: fedlab report {self.run_dir}"


@dataclass(frozen=True, kw_only=True)
class ClientLeftOut(Event):
    """A client is not in the model, or not in all rounds of it."""

    level: ClassVar[Level] = Level.WARNING
    took_part: int
    missed: int

    def text(self) -> str:
        if not self.took_part:
            return f"{self.client} is NOT in the model: {self.reason}"
        return f"{self.client} is not in {rounds(self.missed)} of the model: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class MoreLeftOut(Event):
    """There are more of them than there are lines for."""

    level: ClassVar[Level] = Level.WARNING
    clients: int

    def text(self) -> str:
        return f"so are {self.clients} more clients; rounds.jsonl has all of them, under absent"


@dataclass(frozen=True, kw_only=True)
class RunStopped(Event):
    """A signal ended the process before the run was over."""

    signal: str
    run_dir: str

    def text(self) -> str:
        return f"stopped by {self.signal}; what was counted so far is in {self.run_dir}"
