"""The tables of a sweep: methods by points of the grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedlab.engine.outcome import marks
from fedlab.reports.paired import interval, mean_rounds, mean_speed_up
from fedlab.reports.tables import Table
from fedlab.sweep.form import Sweep
from fedlab.sweep.plan import named
from fedlab.sweep.results import Entry, Tried, difference


@dataclass(frozen=True, kw_only=True)
class Results:
    """All that came of a sweep."""

    sweep: Sweep
    tried: Sequence[Tried]
    entries: Mapping[tuple[str, str], Entry]
    """By method and name of a point."""

    @property
    def points(self) -> list[str]:
        """Their names, in the order of the grid."""
        return list(dict.fromkeys(point for _, point in self.entries))

    def tables(self) -> dict[str, tuple[str, Table]]:
        """Title and table by the name of a file."""
        found: dict[str, tuple[str, Table]] = {}
        if self.tried:
            found["search"] = ("Search: validation accuracy in per cent", self._search())
        if not self.sweep.report.stop_at_target:
            found |= self._accuracies()
        for target in self.sweep.report.targets:
            found |= self._target(target)
        if any(entry.head_gaps() for entry in self.entries.values()):
            title = (
                "Head gap at the first and at the last look, in points: mean of the seeds, with 95 % interval"
            )
            found["head-gap"] = (title, self._table(_head_gap))
        return found

    def _accuracies(self) -> dict[str, tuple[str, Table]]:
        last = self.sweep.report.score
        of = f"the last {last} evaluations" if last > 1 else "the last evaluation"
        seeds = f"{len(self.sweep.report.all_seeds)} seeds, with 95 % interval"
        return {
            "accuracy": (f"Accuracy in {of}, in per cent: mean of {seeds}", self._table(self._mean)),
            "difference": (
                f"Difference to {self.sweep.baseline}, in points, paired by seed: mean of {seeds}",
                self._table(self._difference),
            ),
        }

    def _target(self, target: float) -> dict[str, tuple[str, Table]]:
        name = f"{100 * target:g}"
        return {
            f"rounds-to-{name}": (
                f"Rounds to {name} %, by seed and on average",
                self._table(lambda entry: _rounds(entry, target)),
            ),
            f"speed-up-to-{name}": (
                f"Speed-up over {self.sweep.baseline} to {name} %: geometric mean, paired by seed",
                self._table(lambda entry: self._speed_up(entry, target)),
            ),
        }

    def baseline(self, entry: Entry) -> Entry:
        """What an entry is compared with."""
        return self.entries[self.sweep.baseline, named(entry.point)]

    def _table(self, shown: Callable[[Entry], str]) -> Table:
        headings = ["method", *(point or "all" for point in self.points)]
        rows = [
            [method, *(shown(self.entries[method, point]) for point in self.points)]
            for method in self.sweep.methods
        ]
        return Table(headings, rows)

    def _mean(self, entry: Entry) -> str:
        values = [100 * value for value in entry.scores(self.sweep.report.score).values()]
        return _with_marks(interval(values).text() if values else "", entry)

    def _difference(self, entry: Entry) -> str:
        if entry.method == self.sweep.baseline:
            return "-"
        found = difference(entry, self.baseline(entry), self.sweep.report.score)
        return _with_marks(found.scaled(100).text("+.1f") if found else "", entry)

    def _speed_up(self, entry: Entry, target: float) -> str:
        found = mean_speed_up(entry.reached(target), self.baseline(entry).reached(target))
        return found.text(".2f", "x") if found is not None else "-"

    def _search(self) -> Table:
        rows = [
            [
                each.method,
                named(each.point) or "all",
                named(each.values),
                marks(each.outcomes) if each.accuracy is None else f"{100 * each.accuracy:.1f}",
                "chosen" if each.chosen else "",
            ]
            for each in self.tried
        ]
        return Table(["method", "at", "values", "validation accuracy", ""], rows)


def _rounds(entry: Entry, target: float) -> str:
    reached = entry.reached(target)
    each = " / ".join(reached[seed].text() for seed in sorted(reached))
    if len(reached) > 1:
        each += f", mean {mean_rounds(list(reached.values())).text()}"
    return _with_marks(each, entry)


def _head_gap(entry: Entry) -> str:
    gaps = entry.head_gaps()
    looks = [interval([100 * each[k] for each in gaps]).text() for k in (0, -1)] if gaps else []
    return _with_marks(" to ".join(looks), entry)


def _with_marks(text: str, entry: Entry) -> str:
    return " ".join(filter(None, [text, entry.marks])) or "-"
