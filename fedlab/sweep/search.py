"""Chooses settings by validation accuracy, for each method at each point; the test set has no say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace

from fedlab.engine.cells import Cell
from fedlab.engine.outcome import Outcome, usable
from fedlab.sweep.form import Settings
from fedlab.sweep.plan import PlannedRun, named
from fedlab.sweep.results import Tried, validation_score


def search(runs: Iterable[PlannedRun], outcome: Callable[[Cell], Outcome], last: int) -> list[Tried]:
    """What every combination came to, with the best of each method and point marked; the first of equals."""
    groups: dict[tuple[str, str, str], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.method, named(run.point), named(run.tried)), []).append(run)
    tried = [_tried(group, outcome, last) for group in groups.values()]
    best: dict[tuple[str, str], Tried] = {}
    for each in tried:
        key = (each.method, named(each.point))
        if key not in best or _rank(each) > _rank(best[key]):
            best[key] = each
    return [replace(each, chosen=best[each.method, named(each.point)] is each) for each in tried]


def chosen(tried: Iterable[Tried]) -> dict[tuple[str, str], Settings]:
    """What was found, by method and name of a point."""
    return {(each.method, named(each.point)): each.values for each in tried if each.chosen}


def _tried(group: list[PlannedRun], outcome: Callable[[Cell], Outcome], last: int) -> Tried:
    outcomes = [outcome(run.cell) for run in group]
    found = [validation_score(run, last) for run in usable(outcomes)]
    known = [value for value in found if value is not None]
    return Tried(
        method=group[0].method,
        point=group[0].point,
        values=group[0].tried,
        outcomes=outcomes,
        accuracy=statistics.fmean(known) if len(known) == len(outcomes) else None,
        chosen=False,
    )


def _rank(each: Tried) -> float:
    """A combination of which a seed diverged or failed is chosen only if there is no other."""
    return -math.inf if each.accuracy is None else each.accuracy
