"""Metric families in Prometheus's text format, version 0.0.4, and the bound on their labels."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_NAMES = 100
"""Clients, or layers, that have series of their own; those beyond are one series, `other`."""
OTHER = "other"
BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Upper ends in seconds; a round takes from a tenth of a second to an hour."""
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass
class Series:
    """Values by labels. Those that get the same labels, because a name has none of its own, become one."""

    labels: tuple[str, ...]
    fold: Callable[[float, float], float]
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, value: float | None, *labels: str) -> None:
        """A value; one that is not known has no series."""
        if value is not None and not math.isnan(value):
            before = self.values.get(labels)
            self.values[labels] = value if before is None else self.fold(before, value)


class Names:
    """Of clients, or layers: those that have series of their own."""

    def __init__(self, names: Iterable[str]) -> None:
        self._own = frozenset(islice(names, MOST_NAMES))

    def __call__(self, name: str) -> str:
        """The label for a name."""
        return name if name in self._own else OTHER


class Histogram:
    """Counts of durations."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Suffix of the name, the label `le` (empty for none), and value."""
        total = 0
        for end, count in zip((*BUCKETS, math.inf), self._counts, strict=True):
            total += count
            yield "_bucket", _number(end), total
        yield "_sum", "", self._sum
        yield "_count", "", total


def head(name: str, kind: str, text: str) -> str:
    """The two lines before the samples of a family."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """One line."""
    inner = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {_number(value)}\n"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))
