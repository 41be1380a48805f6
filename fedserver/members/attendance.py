"""Who took part in how many rounds, and why others did not, added up from the records of a run's rounds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from common.records.rounds import RoundRecord

LEFT, DECLINED = "left", "declined"
"""What the reasons of those begin with who said themselves that they have no update."""
NO_SIGN = "no sign of life"
NO_ANSWER = "no answer by the deadline"
NO_PROGRESS = "signs of life, but no answer for too long"
NEVER_DRAWN = "never drawn for a round"
MOST_EVALUATIONS = 100
"""What somebody who begins to watch hears of earlier rounds."""
RECENT = 10
"""Rounds that tell how long the next ones will take."""


@dataclass(frozen=True)
class Absence:
    """A client that is not in the model, or not in all rounds of it."""

    client: str
    took_part: int
    missed: int
    """Rounds that it was drawn for and is not in."""
    reason: str
    """Of the last of them."""
    for_good: bool
    """Whether nobody asked for it: it left and has not come back, or never had an update to give."""


class Attendance:
    """Adds up the rounds of a run, also those of earlier processes."""

    def __init__(self) -> None:
        self.rounds = 0
        self.unnamed = 0
        """Of these, rounds of an earlier release whose records do not say who took part."""
        self.seconds = self.evaluation_seconds = 0.0
        self.down_bytes = self.up_bytes = 0
        self.last: tuple[int, float] | None = None
        """The last round whose x was evaluated, and the accuracy."""
        self.best: tuple[int, float] | None = None
        self.evaluations: deque[tuple[int, float, float | None]] = deque(maxlen=MOST_EVALUATIONS)
        """Round, accuracy and loss, the newest last."""
        self._recent_s: deque[float] = deque(maxlen=RECENT)
        self._took_part: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        """Why a client is not in the last round that it was drawn for; empty if it is."""
        self._reasons: dict[str, str] = {}

    def add(self, record: RoundRecord) -> None:
        """A round has closed."""
        sent = record.bytes
        self.rounds += 1
        self.unnamed += not record.clients
        self.seconds += record.seconds.round
        self._recent_s.append(record.seconds.round)
        self.down_bytes += sent.down.total
        self.up_bytes += sent.up.total
        self.add_evaluation(record)
        self._took_part.update(record.clients)
        self._missed.update(record.absent.keys())
        self._reasons |= record.absent
        self._last |= dict.fromkeys(record.clients, "") | record.absent

    def add_evaluation(self, record: RoundRecord) -> None:
        """The x of a round is evaluated, if it is; rounds are evaluated in their order."""
        self.evaluation_seconds += record.seconds.evaluate or 0.0
        if record.accuracy is not None:
            self.last = (record.round, record.accuracy)
            self.evaluations.append((record.round, record.accuracy, record.loss))
            if self.best is None or record.accuracy > self.best[1]:
                self.best = self.last

    @property
    def round_s(self) -> float | None:
        """How long a round takes of late; None before the first."""
        return median(self._recent_s) if self._recent_s else None

    def lost(self, names: Iterable[str]) -> list[str]:
        """Of these clients, those who are not in the model though no setting leaves them out."""
        return [absence.client for absence in self.absences(names) if absence.for_good]

    def rounds_of(self, name: str) -> int:
        """Rounds that have an update of this client in them."""
        return self._took_part[name]

    def absences(self, names: Iterable[str]) -> list[Absence]:
        """Of these clients, those who are not in every round that they were drawn for, or in none."""
        return [self._absence(name) for name in names if self._missed[name] or not self._took_part[name]]

    def _absence(self, name: str) -> Absence:
        took_part, missed = self._took_part[name], self._missed[name]
        reason = self._reasons.get(name, NEVER_DRAWN)
        own = (LEFT,) if took_part else (LEFT, DECLINED)
        return Absence(name, took_part, missed, reason, self._last.get(name, "").startswith(own))
