"""What several items need: learning curves over all seeds, values over rounds, entries of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from common.page.charts import Curves, View
from common.records.rounds import RoundRecord
from fedlab.engine.outcome import Outcome, marks, usable
from fedlab.paper.columns import Column
from fedlab.paper.study import Study
from fedlab.reports.paired import Curve, band, interval
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table

Value = Callable[[RoundRecord], float | None]


def over_rounds(
    title: str,
    y: str,
    runs: Mapping[str, Sequence[Run]],
    value: Value,
    *,
    percent: bool = False,
    log: bool = False,
) -> Curves:
    """A line for each name: the mean over its runs, within the band of its interval."""
    series, bands = {}, {}
    for name, each in runs.items():
        found = band([_curve(run, value) for run in each])
        if found.xs:
            series[name] = found.xs, found.mean
        if found.xs and len(each) > 1:
            bands[name] = found.low, found.high
    view = View(name="", x="round", y=y, series=series, bands=bands, percent=percent, log=log)
    return Curves(title=title, views=[view])


def _curve(run: Run, value: Value) -> Curve:
    found = {float(record.round): value(record) for record in run.rounds}
    known = {number: each for number, each in found.items() if each is not None}
    return list(known), list(known.values())


def learning_curves(title: str, outcomes: Mapping[str, Sequence[Outcome]]) -> Curves:
    """Accuracy by round, over all seeds; a run that diverged has its rounds up to there."""
    runs = {name: [each.run for each in found if each.run is not None] for name, found in outcomes.items()}
    return over_rounds(title, "accuracy", runs, lambda record: record.accuracy, percent=True)


def accuracy_at(run: Run, number: int) -> float | None:
    """After a round."""
    return next((record.accuracy for record in run.rounds if record.round == number), None)


def copies(run: Run) -> float:
    """Model and control payload per client and round, in units of the model sent once."""
    counts = run.bytes_per_client_and_round()
    return 2 * (counts["model"] + counts["control"]) / counts["model"]


def entry(outcomes: Sequence[Outcome], value: Callable[[Run], float | None]) -> str:
    """Mean and interval of the seeds that have a value, and how the others ended."""
    values = [found for run in usable(outcomes) if (found := value(run)) is not None]
    return " ".join(filter(None, [interval(values).text() if values else "", marks(outcomes)])) or "-"


def stand_ins(study: Study, columns: Sequence[Column]) -> Table:
    """What stands for each column at this scale."""
    rows = []
    for column in columns:
        found = study.scale.stand_in(column)
        rows.append([column.name, column.heading, found.words, f"{column.alpha:g}", f"{found.target:.0%}"])
    return Table(["column", "in the paper", "here", "alpha", "target of table 2"], rows)
