"""What somebody who watches sees of a run at a moment, be it in its directory or told by its server."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from common.live.record import ABSENT_STATES

FINISHED, STOPPED = "finished", "stopped"
"""Phases after which nothing more comes. The others are those of a status: preparing, waiting, training."""
LEFT_OUT = 3
"""The exit code of a run that is finished without somebody, as of `fedserver run`."""


@dataclass(frozen=True, kw_only=True)
class SeenClient:
    """A client of a run."""

    name: str
    state: str
    why: str = ""
    """Why it is not there, or waits."""
    silent_s: float | None = None
    """For how long nothing was heard of it; None where that is not known."""
    examples: int = 0
    counted_round: int = 0
    upload: float | None = None
    """Share of its update that is here, while it is on its way."""

    @property
    def absent(self) -> bool:
        """Whether it is not there."""
        return self.state in ABSENT_STATES


@dataclass(frozen=True, kw_only=True)
class SeenEvaluation:
    """How good x was after a round."""

    round: int
    accuracy: float
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class SeenEvent:
    """Something that happened."""

    time: str
    """Of the day, here."""
    text: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A run at a moment."""

    source: str
    """The directory or the address that it is seen at."""
    run_id: str
    algorithm: str
    model: str
    dataset: str
    phase: str
    outcome: str = ""
    """How it ended, if it has and that is known."""
    round: int
    rounds: int
    here: int = 0
    """Clients that are here, while the run waits for them."""
    needed: int = 0
    """Clients that it starts with."""
    open_s: float | None = None
    """For how long the round has been open."""
    left_s: float | None = None
    """How long the rounds that are left may take."""
    started: float | None = None
    """When its last process began, in seconds since 1970; None where that is not known."""
    clients: tuple[SeenClient, ...] = ()
    others: int = 0
    """Clients besides them, which only an operator sees."""
    evaluations: tuple[SeenEvaluation, ...] = ()
    bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By direction and purpose."""
    lost: tuple[str, ...] = ()
    """Who is not in the model of a finished run though no setting leaves it out."""
    events: tuple[SeenEvent, ...] = ()
    """The last ones, the newest last."""

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.phase in (FINISHED, STOPPED)

    @property
    def exit_code(self) -> int:
        """0 for a finished run, 3 for one that somebody is missing in, 1 for any other."""
        if self.phase != FINISHED:
            return 1
        return LEFT_OUT if self.lost else 0

    @property
    def accuracy(self) -> float | None:
        """Of the last evaluation."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def total_bytes(self) -> int:
        """Both ways."""
        return sum(count for counts in self.bytes.values() for count in counts.values())

    def json(self) -> str:
        """As one line; a number that is not finite is null."""
        return json.dumps(_finite(asdict(self)))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def doing(frame: Frame) -> str:
    """The phase for people: of a run that waits for clients, how many are missing."""
    if frame.phase == "waiting" and frame.needed:
        return f"waiting, {frame.here} of {frame.needed} clients are here"
    if frame.phase == STOPPED:
        return f"stopped after round {frame.round} of {frame.rounds}"
    return f"{frame.phase}, round {frame.round} of {frame.rounds}" if frame.round else frame.phase


def changes(before: Frame | None, now: Frame) -> Iterator[SeenEvent]:
    """What has happened between two frames, as far as it can be seen from them."""
    at = time.strftime("%H:%M:%S")
    seen = before.evaluations[-1].round if before is not None and before.evaluations else 0
    for each in now.evaluations if before is not None else now.evaluations[-1:]:
        if each.round > seen:
            yield SeenEvent(time=at, text=f"round {each.round}: accuracy {each.accuracy:.2%}")
    if before is None or (before.phase, before.round) != (now.phase, now.round):
        why = f": {now.outcome}" if now.outcome not in ("", now.phase) else ""
        yield SeenEvent(time=at, text=f"{doing(now)}{why}", warning=now.phase == STOPPED)
    states = {client.name: client.state for client in before.clients} if before is not None else {}
    for client in now.clients:
        # What everybody does in every round is no news.
        if client.absent != (states.get(client.name) in ABSENT_STATES) and (before or client.absent):
            why = f": {client.why}" if client.why else ""
            text = f"{client.name} {client.state}{why}" if client.absent else f"{client.name} is here again"
            yield SeenEvent(time=at, text=text, warning=client.absent)
