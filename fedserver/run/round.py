"""The open round as a table: for each client that was drawn, whether and how it has answered. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from common.tensors.layout import Flat
from common.wire.chunks import Frame


@dataclass(frozen=True)
class Update:
    """A client's word on the update that it hands in, besides the tensors."""

    client: str
    round: int
    steps: int
    """K_i."""
    examples: int
    loss: float
    fingerprint: str = ""
    validation_accuracy: float | None = None
    update_id: str = ""
    train_seconds: float = 0.0


@dataclass(frozen=True)
class Declined:
    """A client says that it has no update for this round."""

    client: str
    round: int
    reason: str


@dataclass(frozen=True)
class Excused:
    """The round does not wait for a client: it has left, or was not heard of in time."""

    client: str
    reason: str


Answer = Update | Declined | Excused


class State(Enum):
    """Where a client stands in a round."""

    NOT_DRAWN = auto()
    AWAITED = auto()
    UPDATED = auto()
    DECLINED = auto()
    EXCUSED = auto()


class Outcome(Enum):
    """What becomes of an answer; names as in `PushUpdateReply.Outcome`."""

    ACCEPTED = auto()
    DUPLICATE = auto()
    LATE = auto()


STATE_AFTER: dict[type[Answer], State] = {
    Update: State.UPDATED,
    Declined: State.DECLINED,
    Excused: State.EXCUSED,
}
OUTCOME_IN = {
    State.NOT_DRAWN: Outcome.LATE,
    State.AWAITED: Outcome.ACCEPTED,
    State.UPDATED: Outcome.DUPLICATE,
    State.DECLINED: Outcome.DUPLICATE,
    State.EXCUSED: Outcome.LATE,
}
"""Only the first answer of a client changes anything."""


class Round:
    """A round that clients can pull and answer."""

    def __init__(
        self, number: int, broadcast: Flat, frames: list[Frame], drawn: Iterable[int], *, derivable: bool
    ) -> None:
        """`derivable`: whether a client that was there in the round before can compute c."""
        self.number = number
        self.broadcast = broadcast
        """x, buffers and c as clients see them."""
        self.frames = frames
        """The broadcast, encoded once for all clients."""
        self.derivable = derivable
        self.answers: dict[int, Answer | None] = dict.fromkeys(drawn)
        """By the index of the clients that take part; None while a client is awaited."""

    def state(self, i: int) -> State:
        """Where a client stands."""
        if i not in self.answers:
            return State.NOT_DRAWN
        answer = self.answers[i]
        return State.AWAITED if answer is None else STATE_AFTER[type(answer)]

    def waits_for(self, i: int) -> bool:
        """Whether the round needs an answer of this client."""
        return self.state(i) is State.AWAITED

    def awaited(self) -> list[int]:
        """Clients that have not answered."""
        return [i for i, answer in self.answers.items() if answer is None]

    def updates(self) -> dict[int, Update]:
        """Updates that are in, by client."""
        return {i: answer for i, answer in self.answers.items() if isinstance(answer, Update)}

    def outcome(self, i: int) -> Outcome:
        """What would become of an answer of this client."""
        return OUTCOME_IN[self.state(i)]

    def answer(self, i: int, answer: Answer) -> Outcome:
        """Takes an answer, if it is the first of this client."""
        outcome = self.outcome(i)
        if outcome is Outcome.ACCEPTED:
            self.answers[i] = answer
        return outcome
