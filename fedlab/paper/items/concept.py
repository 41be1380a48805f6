"""Figure 1: what a method gains over what it sends."""

from __future__ import annotations

from collections.abc import Sequence

from common.page.charts import Curves, View
from fedlab.experiments.bench import Output
from fedlab.experiments.methods import DERIVED, METHODS, TRAINED
from fedlab.paper import published
from fedlab.paper.columns import Column
from fedlab.paper.items.parts import copies
from fedlab.paper.items.tables import speed_up, trained
from fedlab.paper.study import Study, Wanted
from fedlab.reports.tables import Table


def runs(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """Those of table 2, and what derived methods send."""
    return [*trained(study, columns), *(study.traffic_of(c, m) for c in columns for m in DERIVED)]


def fig1(study: Study, columns: Sequence[Column], out: Output) -> None:
    """A point for every method and column: speed-up over FedAvg against copies of the model sent."""
    rows: list[list[str]] = []
    points: dict[str, tuple[list[float], list[float | None]]] = {m: ([], []) for m in METHODS}
    for column in columns:
        outcomes = {m: study.outcomes(study.every_seed(column, m)) for m in TRAINED}
        for method in METHODS:
            of = outcomes[DERIVED.get(method, method)]
            sending = study.outcome(study.traffic_of(column, method)) if method in DERIVED else of[0]
            target = study.scale.stand_in(column).target
            gained = speed_up(of, outcomes["fedavg"], target, study.scale.rounds)
            key = (column.name, method)
            rows.append(
                [
                    study.heading(column),
                    method,
                    sending.shown(lambda run: f"{copies(run):.4f}x"),
                    "-" if gained is None else gained.text(".2f", "x"),
                    published.COPIES.get(key, "-"),
                    published.SPEED_UP.get(key, "-"),
                ]
            )
            if sending.usable is not None and gained is not None and gained.sign != "<":
                points[method][0].append(copies(sending.usable))
                points[method][1].append(gained.value)
    headings = ["column", "algorithm", "copies sent", "speed-up", "paper: copies", "paper: speed-up"]
    out.table("fig1", "Speed-up over FedAvg, and what is sent per client and round", Table(headings, rows))
    view = View(name="", x="copies of the model sent", y="speed-up over FedAvg", series=points, points=True)
    out.pictures("fig1", [Curves(title="speed-up over copies sent, a point per column", views=[view])])
    out.page.text(
        "A point is drawn at the bound where a speed-up is a lower bound, and not at all where it is an "
        "upper."
    )
