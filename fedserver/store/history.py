"""Who took part in which rounds of a run, and who was left out and why, as ranges of rounds.

It takes a few hundred bytes for a client at the most, however many rounds there are.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from common.records.provenance import MOST_CLIENTS, Part, Provenance
from common.records.rounds import RoundRecord
from common.records.run import RunRecord, Seat

MOST_RANGES = 20
"""Ranges of rounds that are told of a client: the first ones, and the last."""
MOST_REASONS = 10
CLIPPED, OTHER = "clipped", "other reasons"
SHORT = {
    "no answer by the deadline": "deadline",
    "no sign of life": "gone",
    "signs of life, but no answer for too long": "stalled",
}
"""Reasons of rounds.jsonl in a word; of others it is what comes before the colon."""


class Ranges:
    """Rounds in growing order, as ranges."""

    def __init__(self) -> None:
        self._ends = array("I")
        """First and last round of each range; of many, the first ones and the last one."""
        self._count = 0
        self._cut = False

    def add(self, r: int) -> None:
        """A round that is later than all others."""
        self._count += 1
        ends = self._ends
        if ends and ends[-1] == r - 1:
            ends[-1] = r
        elif len(ends) == 2 * MOST_RANGES:
            ends[-2:] = array("I", [r, r])
            self._cut = True
        else:
            ends.extend([r, r])

    def until(self, r: int) -> tuple[int, str]:
        """How many there are, and which; without those after r."""
        ends = [*zip(self._ends[::2], self._ends[1::2], strict=True)]
        beyond = sum(max(0, b - max(r, a - 1)) for a, b in ends)
        pairs = [f"{a}-{min(b, r)}" if a < min(b, r) else f"{a}" for a, b in ends if a <= r]
        if self._cut:
            pairs.insert(MOST_RANGES - 1, "...")
        return self._count - beyond, ",".join(pairs)


@dataclass(frozen=True)
class LeftOut:
    """A client that is not in some rounds."""

    client: str
    rounds: str
    reason: str


class History:
    """Of one run. A thread writes the model while another closes the next round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._took_part: dict[str, Ranges] = {}
        self._left_out: dict[str, dict[str, Ranges]] = {}
        self._without = Ranges()

    def restore(self, records: Iterable[RoundRecord]) -> None:
        """The rounds that an earlier process has closed."""
        for record in sorted(records, key=lambda record: record.round):
            self.add(record)

    def add(self, record: RoundRecord) -> None:
        """A round counts."""
        r, uncounted = record.round, record.uncounted or {}
        with self._lock:
            if r <= self._last:
                return
            self._last = r
            for name in record.clients:
                if name not in uncounted:
                    self._took_part.setdefault(name, Ranges()).add(r)
            for name, reason in record.absent.items():
                self._leave_out(name, SHORT.get(reason) or reason.partition(":")[0][:40], r)
            for name, reason in uncounted.items():
                self._leave_out(name, reason, r)
            for name in (record.clipped or {}).keys() - uncounted.keys():
                self._leave_out(name, CLIPPED, r)
            if record.absent or uncounted:
                self._without.add(r)

    def _leave_out(self, name: str, reason: str, r: int) -> None:
        reasons = self._left_out.setdefault(name, {})
        if len(reasons) >= MOST_REASONS and reason not in reasons:
            reason = OTHER
        reasons.setdefault(reason, Ranges()).add(r)

    @property
    def rounds_without(self) -> int:
        """How many rounds closed without somebody who was drawn for them."""
        return self._without.until(self._last)[0]

    def left_out(self) -> list[LeftOut]:
        """Who is not in which rounds, and why; whose update only was made smaller is in them."""
        with self._lock:
            return [
                LeftOut(name, ranges.until(self._last)[1], reason)
                for name, reasons in self._left_out.items()
                for reason, ranges in reasons.items()
                if reason != CLIPPED
            ]

    def provenance(self, config: RunRecord, r: int) -> Provenance:
        """What the x of round r says of itself."""
        with self._lock:
            parts = tuple(self._part(seat, r) for seat in config.clients[:MOST_CLIENTS])
            without = self._without.until(r)[0]
        return Provenance.of(config, r, without, parts, len(config.clients) - len(parts))

    def _part(self, seat: Seat, r: int) -> Part:
        rounds, which = self._took_part.get(seat.name, Ranges()).until(r)
        reasons = {reason: ranges.until(r) for reason, ranges in self._left_out.get(seat.name, {}).items()}
        return Part(
            name=seat.name,
            examples=seat.examples,
            rounds=rounds,
            took_part=which,
            left_out={reason: which for reason, (count, which) in sorted(reasons.items()) if count},
            evicted_in=seat.evicted_in,
        )
