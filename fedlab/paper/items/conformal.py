"""Figures 3 and C.4: how large prediction sets must be to cover as much as the centralised model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from common.page.charts import Curves, View
from fedlab.engine.outcome import Outcome, marks, usable
from fedlab.experiments.bench import Output
from fedlab.experiments.methods import TRAINED
from fedlab.paper.columns import Column
from fedlab.paper.items import central
from fedlab.paper.study import Study, Wanted
from fedlab.reports.plots import Drawn
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table

Sets = list[tuple[float, float, float]]
"""kappa, coverage and mean size, means over seeds."""
SHOWN_KAPPAS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
"""In tables; pictures have all."""


def runs(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """Every method until the round that counts, and the baseline."""
    federated = [each for column in columns for method in TRAINED for each in study.until(column, method)]
    return [*federated, *central.runs(study, columns)]


def fig3(study: Study, columns: Sequence[Column], out: Output) -> None:
    """With a line at the centralised top-1 accuracy."""
    _make(study, columns, out, with_sets=False)


def fig_c4(study: Study, columns: Sequence[Column], out: Output) -> None:
    """With the centralised model's own prediction sets."""
    _make(study, columns, out, with_sets=True)


def _make(study: Study, columns: Sequence[Column], out: Output, *, with_sets: bool) -> None:
    pictures: list[Drawn] = []
    for column in columns:
        baseline = central.chosen(study, column)
        outcomes = {method: study.outcomes(study.until(column, method)) for method in TRAINED}
        sets = {method: _sets(usable(found)) for method, found in outcomes.items()}
        if with_sets:
            sets["centralised"] = _sets(usable(baseline.outcomes))
        line = None if with_sets else baseline.accuracy
        pictures.append(_picture(study.heading(column), sets, line))
        rows = [[name, *_entries(name, found, outcomes, baseline.accuracy)] for name, found in sets.items()]
        kappas = [f"kappa {kappa:g}" for kappa in SHOWN_KAPPAS]
        headings = ["algorithm", "size to reach centralised top-1", *kappas]
        filled = [[*row, *["-"] * (len(headings) - len(row))] for row in rows]
        title = f"{study.heading(column)}: coverage with mean set size; centralised top-1 {baseline.entry} %"
        out.table(f"sets-{column.name}", title, Table(headings, filled))
    out.pictures("sets", pictures)
    out.page.text(f"Of x after round {study.scale.at_round}; means over seeds. {central.text(study)}")
    out.page.text(_calibration(study, columns[0]))


def _calibration(study: Study, column: Column) -> str:
    """What the sets were calibrated on."""
    found = usable(study.outcomes(study.until(column, "fedavg")))
    kept = bool(found) and found[0].calibrated.calibration == "validation"
    on = (
        "what clients keep for validation, as in the paper"
        if kept
        else "half of the test set, tested on the other"
    )
    return f"Sets of {study.heading(column)} are calibrated on {on}."


def _sets(found: Sequence[Run]) -> Sets:
    """Means over seeds for each kappa."""
    by_kappa = zip(*(run.conformal for run in found), strict=True)
    return [
        (
            each[0].kappa,
            statistics.fmean(s.coverage for s in each),
            statistics.fmean(s.mean_size for s in each),
        )
        for each in by_kappa
    ]


def _entries(name: str, found: Sets, outcomes: dict[str, list[Outcome]], accuracy: float | None) -> list[str]:
    """How large sets must be, and what they are at each kappa; or how the runs ended."""
    if not found:
        return [marks(outcomes.get(name, [])) or "-"]
    shown = [f"{coverage:.3f} with {size:.2f}" for kappa, coverage, size in found if kappa in SHOWN_KAPPAS]
    return [_size_to(found, accuracy), *shown]


def _size_to(found: Sets, accuracy: float | None) -> str:
    """Mean size of the smallest sets that cover the accuracy, between two kappas by a straight line."""
    if accuracy is None:
        return "-"
    ordered = sorted((size, coverage) for _, coverage, size in found)
    if ordered[0][1] >= accuracy:
        return f"<{ordered[0][0]:.2f}"
    for (low, under), (high, over) in pairwise(ordered):
        if under < accuracy <= over:
            return f"{low + (high - low) * (accuracy - under) / (over - under):.2f}"
    return f">{ordered[-1][0]:.2f}"


def _picture(title: str, sets: dict[str, Sets], line: float | None) -> Curves:
    series: dict[str, tuple[list[float], list[float | None]]] = {
        name: ([size for _, _, size in found], [coverage for _, coverage, _ in found])
        for name, found in sets.items()
        if found
    }
    sizes = [size for found in sets.values() for _, _, size in found]
    if line is not None and sizes:
        series["centralised top-1"] = [min(sizes), max(sizes)], [line, line]
    view = View(name="", x="mean set size", y="coverage", series=series, percent=True)
    return Curves(title=title, views=[view])
