"""What came of a sweep: an entry for every method at every point of the grid."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedlab.engine.outcome import Kind, Outcome, marks
from fedlab.reports.paired import Interval, Reached, differences, interval
from fedlab.reports.runs import Run
from fedlab.sweep.form import Point, Settings


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method at one point, with all its seeds."""

    method: str
    point: Point
    chosen: Settings
    """What the search has found for it."""
    outcomes: Mapping[int, Outcome]
    """By seed."""
    rounds: int
    """That a run of it has."""

    @property
    def marks(self) -> str:
        """Seeds without a value, as a table says it."""
        return marks(self.outcomes.values())

    def scores(self, last: int) -> dict[int, float]:
        """Mean accuracy of the last evaluations, of the seeds that have all rounds."""
        runs = {seed: outcome.usable for seed, outcome in self.outcomes.items()}
        return {seed: score(run, last) for seed, run in runs.items() if run is not None}

    def reached(self, target: float) -> dict[int, Reached]:
        """Rounds to a target. One that diverged has not reached it in as many rounds as it was to have.

        One that failed says nothing and is left out.
        """
        found: dict[int, Reached] = {}
        for seed, outcome in self.outcomes.items():
            at = None if outcome.run is None else outcome.run.rounds_to(target)
            if at is not None:
                found[seed] = Reached(at)
            elif outcome.kind is not Kind.FAILED:
                found[seed] = Reached(self.rounds, censored=True)
        return found

    def head_gaps(self) -> list[list[float]]:
        """What another classifier on the same features would win, at every look with --probe, by seed."""
        runs = [outcome.usable for outcome in self.outcomes.values()]
        found = [
            [r.head_gap for r in run.rounds if r.head_gap is not None] for run in runs if run is not None
        ]
        return [each for each in found if each]

    def curves(self) -> list[tuple[list[float], list[float]]]:
        """Accuracy over rounds, of every seed that has all of them."""
        runs = [outcome.usable for outcome in self.outcomes.values()]
        return [run.accuracy_over("round") for run in runs if run is not None]


def score(run: Run, last: int) -> float:
    """Mean accuracy of the last evaluations."""
    accuracies = [record.accuracy for record in run.rounds if record.accuracy is not None]
    return statistics.fmean(accuracies[-last:])


def validation_score(run: Run, last: int) -> float | None:
    """Mean validation accuracy of the last rounds; None where shards are too small for a validation share."""
    accuracies = [r.validation_accuracy for r in run.rounds if r.validation_accuracy is not None]
    return statistics.fmean(accuracies[-last:]) if accuracies else None


def difference(entry: Entry, baseline: Entry, last: int) -> Interval | None:
    """To the baseline, by seed; None where no seed has both."""
    found = differences(entry.scores(last), baseline.scores(last))
    return interval(found) if found else None


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One combination of a search."""

    method: str
    point: Point
    values: Settings
    outcomes: Sequence[Outcome]
    """By seed of the search."""
    accuracy: float | None
    """Mean validation accuracy over the seeds; None where one of them has none."""
    chosen: bool
