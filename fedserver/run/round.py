"""The open round as a table, with its broadcast: how each client that was drawn has answered. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from common import seeds
from common.errors import UnavailableError
from common.metrics.drift import ClientDrift
from common.records.sites import SiteCounts
from common.server_step.step import CSource
from common.server_step.updates import UpdateReader
from common.tensors.layout import Flat
from common.wire.bundles import Bundle, bundles
from common.wire.chunks import Position
from fedserver.members.attendance import DECLINED
from fedserver.run.run import Run


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
    evaluation: SiteCounts | None = None
    """Of the x that the round began with, on the client's own data."""
    pull_seconds: float | None = None
    """How long x took to come, if the client says so: in a rehearsal only."""
    drift: ClientDrift | None = None
    """How its steps went, where the round asks for it."""
    follows: bool = False
    """Whether its c_i is, to the bit, the one that follows from its y_i: what the server found."""


@dataclass(frozen=True)
class Declined:
    """A client says that it has no update for this round."""

    client: str
    round: int
    reason: str
    diverged: bool = False
    """Whether its training left the finite numbers."""

    @property
    def why(self) -> str:
        """For the record."""
        return f"{DECLINED}: {self.reason}"


@dataclass(frozen=True)
class Excused:
    """The round does not wait for a client: it has left, or was not heard of in time."""

    client: str
    reason: str

    @property
    def why(self) -> str:
        """For the record."""
        return self.reason


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
        self,
        reader: UpdateReader,
        broadcast: list[Bundle],
        drawn: Iterable[int],
        c_source: CSource,
        raw: Flat | None = None,
    ) -> None:
        """`raw` is what the messages carry, for clients that need none because they are in this process."""
        self.rules = reader.rules
        """What its header says."""
        self._reader: UpdateReader | None = reader
        self._bundles = {bundle.position: bundle for bundle in broadcast}
        """The broadcast, encoded once for all clients; empty once the round is over."""
        self._raw = raw
        self.c_source = c_source
        self.answers: dict[int, Answer | None] = dict.fromkeys(drawn)
        """By the index of the clients that take part; None while a client is awaited."""
        self.gives_up = False
        """Whether too few clients are left for it to count."""

    @property
    def reader(self) -> UpdateReader:
        """Reads updates under the rules of the round; raises once it is over."""
        if self._reader is None:
            raise self._is_over()
        return self._reader

    @property
    def raw(self) -> Flat:
        """The bytes of the broadcast where no messages are made of them; raises once the round is over."""
        if self._raw is None:
            raise self._is_over()
        return self._raw

    @property
    def positions(self) -> list[Position]:
        """Of the first chunks of the messages."""
        return [*self._bundles]

    def bundle(self, position: Position) -> Bundle:
        """A message of the broadcast; raises once the round is over, for who reads slowly too."""
        if position not in self._bundles:
            raise self._is_over()
        return self._bundles[position]

    def _is_over(self) -> UnavailableError:
        return UnavailableError(f"round {self.number} is over; ask for the next one")

    def release(self) -> None:
        """Lets x go, and the messages that carry it: the round is over, whoever is still at it."""
        self._reader, self._bundles, self._raw = None, {}, None

    @property
    def number(self) -> int:
        """r."""
        return self.rules.round

    @property
    def is_apart(self) -> bool:
        """Whether it comes before round 1, under a number that no round has."""
        return self.rules.canary or self.rules.gradient_only

    def needs_c(self, after_round: int) -> bool:
        """Whether c has to be sent to a client that knows the x of `after_round`.

        Round 1 comes after round 0, and c is zero then.
        """
        derivable = self.rules.derived and self.c_source is CSource.FROM_MOVE
        return not derivable or after_round != self.number - 1

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

    def has_diverged(self, needed: int) -> bool:
        """Whether training left the finite numbers at so many that too few others could have an update."""
        diverged = [a for a in self.answers.values() if isinstance(a, Declined) and a.diverged]
        return len(self.answers) - len(diverged) < max(needed, 1)

    def absent(self) -> dict[str, str]:
        """Who was drawn and has no update in it, and why."""
        others = [answer for answer in self.answers.values() if isinstance(answer, Declined | Excused)]
        return {answer.client: answer.why for answer in others}

    def outcome(self, i: int) -> Outcome:
        """What would become of an answer of this client."""
        return OUTCOME_IN[self.state(i)]

    def answer(self, i: int, answer: Answer) -> Outcome:
        """Takes an answer, if it is the first of this client."""
        outcome = self.outcome(i)
        if outcome is Outcome.ACCEPTED:
            self.answers[i] = answer
        return outcome


@dataclass(frozen=True)
class Encoded:
    """A broadcast that is ready."""

    flat: Flat
    """x and c."""
    broadcast: Flat
    """The same as clients will see them."""
    bundles: list[Bundle]
    """What carries them; none where clients are in this process."""
    raw: Flat | None
    """The bytes that they would carry, there."""


def encode(run: Run, r: int, flat: Flat) -> Encoded:
    """Makes the broadcast of round r."""
    broadcast = raw = flat
    if not run.down.plain:
        broadcast = flat.copy()
        random = seeds.stream(run.config.seed, seeds.CODEC_DOWN, r)
        raw = run.down.encode_in_place(broadcast, random, None, None)
    if run.in_process:
        return Encoded(flat, broadcast, [], raw)
    return Encoded(flat, broadcast, list(bundles(run.down.encoded, raw)), None)
