"""What a sweep's file may say, as types; `fedlab.sweep.file` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.records.base import REST, Count, Positive

Value = bool | int | float | str | tuple[str, ...] | tuple[float, ...]
"""Of a setting."""
Settings = dict[str, Value]
Choices = dict[str, tuple[Value, ...]]
"""Several values for each setting."""
Point = Mapping[str, Value]
"""Of a grid: a value for each of its settings."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """[methods.NAME]: one of what is compared."""

    settings: Settings = field(metadata=REST)
    """What it has of its own."""
    search: Choices = field(default_factory=dict)
    """[methods.NAME.search]: what is searched for this method alone."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """[search]: settings that are chosen by validation accuracy, for each method and point of the grid."""

    rounds: Positive | None = None
    """Of a run of the search; as many as the others have if it is not said."""
    seeds: Positive = 1
    """With how many of the seeds."""
    values: Choices = field(default_factory=dict)
    """[search.values]: what is tried with every method."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """[report]: what the tables say."""

    seeds: Positive | tuple[Count, ...] = 3
    """How many, from 0 on, or which; the same for all methods."""
    baseline: str = ""
    """The method that the others are compared with; the first if it is not said."""
    score: Positive = 1
    """The accuracy of a run is the mean of this many evaluations, the last ones."""
    targets: tuple[float, ...] = ()
    """Accuracies to which rounds are counted."""
    stop_at_target: bool = False
    """Whether a run ends when it has reached the last target."""

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A whole file."""

    title: str
    question: str = ""
    settings: Settings = field(default_factory=dict)
    """[settings]: of every run."""
    prepare: Settings | None = None
    """[prepare]: of a run on pooled data whose model all others start from."""
    methods: dict[str, Method]
    grid: Choices = field(default_factory=dict)
    """[grid]: every combination is a column of the tables."""
    search: Search = field(default_factory=Search)
    report: Report = field(default_factory=Report)

    @property
    def baseline(self) -> str:
        """The method that the others are compared with."""
        return self.report.baseline or next(iter(self.methods))

    @property
    def stop_at(self) -> float | None:
        """The accuracy at which a run may end."""
        return max(self.report.targets) if self.report.stop_at_target else None

    def searched(self, method: str) -> Choices:
        """What is searched for a method."""
        return self.search.values | self.methods[method].search
