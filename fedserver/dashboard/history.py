"""The closed rounds of a run as points of curves: made once, added up, and thinned for pages."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from common.live.sent import yardsticks
from common.live.view import Changes
from common.records.rounds import Norms, RoundRecord
from common.records.traffic import PurposeBytes
from fedserver.dashboard.messages import DirectionBytes, RoundPoint
from fedserver.members.attendance import Attendance

MOST_POINTS = 400
"""Of a page that is opened: a curve has no more pixels."""


class RoundHistory:
    """Follows the rounds of a `RunView`."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.points: dict[int, RoundPoint] = {}
        self.layers: dict[str, int] = {}
        """Their places in `RoundPoint.drift`, in the order in which they were first seen."""
        self.attendance = Attendance()
        self.metrics: dict[str, tuple[str, float | None]] = {}
        """Of clients that evaluate x: what they reported last."""
        self.norms: dict[str, float | None] = {}
        self.down = self.up = DirectionBytes(model=0, buffer=0, control=0, other=0)
        """Bytes of all rounds."""
        self.uncounted: Counter[str] = Counter()
        """Rounds of whose x nothing is of a client that handed an update in."""
        self.reasons: dict[str, str] = {}
        """Why, the last time."""

    def follow(self, rounds: dict[int, RoundRecord], changes: Changes) -> None:
        """Takes over what is new."""
        if changes.fewer:
            self._forget()
        for r in rounds if changes.fewer else changes.rounds:
            self._take(rounds[r])

    def _take(self, record: RoundRecord) -> None:
        if record.round in self.points:
            self.attendance.add_evaluation(record)
        else:
            self.attendance.add(record)
            self.down, self.up = (_added(self.down, record.bytes.down), _added(self.up, record.bytes.up))
            self.uncounted.update((record.uncounted or {}).keys())
            self.reasons |= record.uncounted or {}
        for layer in record.layer_drift:
            self.layers.setdefault(layer, len(self.layers))
        self.norms = record.norms.clients or self.norms
        if record.sites is not None:
            for name, site in record.sites.sites.items():
                metric = next(iter(site.metrics), "")
                self.metrics[name] = metric, site.metrics.get(metric)
        self.points[record.round] = self._point(record)

    def _point(self, record: RoundRecord) -> RoundPoint:
        known = self.points.get(record.round)
        before = self.points.get(record.round - 1) if known is None else None
        others = yardsticks(record.bytes)
        return RoundPoint(
            round=record.round,
            accuracy=record.accuracy,
            loss=record.loss,
            train_loss=record.train_loss,
            validation=record.validation_accuracy,
            seconds=record.seconds.round,
            updates=record.updates,
            absent=len(record.absent),
            down=_direction(record.bytes.down),
            up=_direction(record.bytes.up),
            total=known.total if known else record.bytes.total + (before.total if before else 0),
            fedavg=known.fedavg if known else others.fedavg + (before.fedavg if before else 0),
            scaffold=known.scaffold if known else others.scaffold + (before.scaffold if before else 0),
            c=record.norms.c,
            c_i=_spread(record.norms),
            drift=tuple(map(record.layer_drift.get, self.layers)),
        )


def thinned(points: Sequence[RoundPoint]) -> tuple[RoundPoint, ...]:
    """So many of them as a page needs, the last one among them. Sums are right in each."""
    step = -(-len(points) // MOST_POINTS)
    return tuple(points if step <= 1 else points[(len(points) - 1) % step :: step])


def chosen(points: dict[int, RoundPoint], rounds: Iterable[int]) -> tuple[RoundPoint, ...]:
    """Those of some rounds."""
    return tuple(points[r] for r in rounds if r in points)


def _direction(sent: PurposeBytes) -> DirectionBytes:
    rest = sent.total - sent.model - sent.buffer - sent.control
    return DirectionBytes(model=sent.model, buffer=sent.buffer, control=sent.control, other=rest)


def _added(before: DirectionBytes, sent: PurposeBytes) -> DirectionBytes:
    now = _direction(sent)
    return DirectionBytes(**{name: count + getattr(before, name) for name, count in vars(now).items()})


def _spread(norms: Norms) -> tuple[float, float, float] | None:
    sizes = [size for size in norms.clients.values() if size is not None]
    return (min(sizes), statistics.median(sizes), max(sizes)) if sizes else None
