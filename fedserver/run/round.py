"""A round that is going on: what it broadcasts, and who has answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto

from common.tensors.layout import Flat
from common.wire.chunks import Frame


class Outcome(Enum):
    """What became of an update; names as in `PushUpdateReply.Outcome`."""

    ACCEPTED = auto()
    DUPLICATE = auto()
    LATE = auto()


@dataclass(frozen=True)
class Answer:
    """What a client handed in about its update, besides the tensors."""

    name: str
    round: int
    steps: int
    examples: int
    loss: float
    fingerprint: str = ""
    declined: str = ""
    validation_accuracy: float | None = None
    update_id: str = ""
    train_seconds: float = 0.0


@dataclass
class OpenRound:
    """A round that clients can pull and answer."""

    number: int
    seen: Flat
    """The broadcast as clients see it."""
    frames: list[Frame]
    """The broadcast, encoded once for all clients."""
    derivable: bool
    """Whether a client that was there in the round before can compute c."""
    answers: dict[int, asyncio.Future[Answer]]
    """By the index of the clients that take part."""

    def waits_for(self, i: int) -> bool:
        """Whether this client is to answer still."""
        return i in self.answers and not self.answers[i].done()

    def updates(self) -> list[Answer]:
        """Those that are in."""
        answers = (answer.result() for answer in self.answers.values() if answer.done())
        return [answer for answer in answers if not answer.declined]

    def has_answer_of(self, i: int) -> bool:
        """Whether this client has answered for this round, with an update or without."""
        return i in self.answers and self.answers[i].done() and self.answers[i].result().round == self.number
