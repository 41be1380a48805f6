"""What happens in the lab while its runs go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.events import Event, Level


@dataclass(frozen=True, kw_only=True)
class DemoStarted(Event):
    """The demo begins."""

    clients: int
    rounds: int
    local_epochs: int
    alpha: float

    def text(self) -> str:
        return (
            f"1 server and {self.clients} clients as processes on this machine; digits, Dirichlet alpha "
            f"{self.alpha}, {self.local_epochs} local epochs, {self.rounds} rounds"
        )


@dataclass(frozen=True, kw_only=True)
class MethodStarted(Event):
    """The demo starts the federation of one method."""

    level: ClassVar[Level] = Level.DETAIL
    method: str
    rounds: int

    def text(self) -> str:
        return f"{self.method}: starting, {self.rounds} rounds"


@dataclass(frozen=True, kw_only=True)
class MethodAdvanced(Event):
    """A federation of the demo has closed a round."""

    method: str
    accuracy: float

    def text(self) -> str:
        return f"{self.method}: round {self.round}, accuracy {self.accuracy:.1%}"


@dataclass(frozen=True, kw_only=True)
class RunsPlanned(Event):
    """It is known which runs an experiment needs."""

    finished: int
    """Runs that an earlier start has left."""
    total: int

    def text(self) -> str:
        if self.finished:
            return f"{self.finished} of {self.total} runs are there already"
        return f"{self.total} runs to do"


@dataclass(frozen=True, kw_only=True)
class ClusterJoined(Event):
    """Runs are about to start on the nodes of a cluster."""

    nodes: int
    cpus: int

    def text(self) -> str:
        return f"runs go to {self.nodes} nodes with {self.cpus} CPUs"


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """A run of an experiment has ended."""

    key: str
    """The name of its folder."""
    outcome: str = "finished"
    """How it ended: finished, stopped at its target, diverged or failed, with the reason."""
    done: int
    total: int
    seconds_left: float
    """Estimated from the runs so far."""

    def text(self) -> str:
        how = "" if self.outcome == "finished" else f" {self.outcome}"
        return f"{self.done}/{self.total} {self.key}{how}; about {self.seconds_left / 60:.0f} min left"


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Event):
    """A worker of a simulation is gone; the others take the turns of its clients."""

    level: ClassVar[Level] = Level.WARNING
    worker: int
    reason: str
    left: int
    """Workers that are still there."""

    def text(self) -> str:
        others = "no other is left" if not self.left else f"{self.left} others take over its clients"
        return f"worker {self.worker} was {self.reason}; {others}"
