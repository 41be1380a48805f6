"""Figures 2c, 4 and C.3: where clients drift apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from common.page.charts import Curves, View
from fedlab.engine.outcome import Outcome, marks, usable
from fedlab.experiments.bench import Output
from fedlab.paper.columns import Column
from fedlab.paper.items.heterogeneity import LEVELS
from fedlab.paper.items.parts import learning_curves, over_rounds
from fedlab.paper.study import Study, Wanted
from fedlab.reports.plots import Drawn
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table

COMPARED = ("fedavg", "scaffold", "fedpvr")


def levels(study: Study, column: Column) -> dict[str, list[Wanted]]:
    """FedAvg with a column's settings and different shards: only the heterogeneity differs."""
    return {
        f"alpha {alpha:g}": study.every_seed(column.at(alpha), "fedavg", cka=study.scale.cka)
        for alpha in LEVELS
    }


def fig2_runs(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """For figures 2b and 2c."""
    return [each for column in columns for found in levels(study, column).values() for each in found]


def fig2c(study: Study, columns: Sequence[Column], out: Output) -> None:
    """Drift diversity of every layer, at several concentrations."""
    for column in columns:
        runs = {name: usable(study.outcomes(found)) for name, found in levels(study, column).items()}
        _diversity(f"{study.heading(column)}, FedAvg", f"drift-{column.name}", runs, out)


def compared_runs(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """For figures 4 and C.3, which need what table 2 needs."""
    return [each for column in columns for method in COMPARED for each in study.every_seed(column, method)]


def diversity_and_learning(study: Study, columns: Sequence[Column], out: Output) -> None:
    """Drift diversity of three methods by layer and round, beside their learning curves."""
    for column in columns:
        outcomes = {method: study.outcomes(study.every_seed(column, method)) for method in COMPARED}
        labels = {m: f"{m}, momentum {study.described(column, m)['momentum']}" for m in COMPARED}
        runs = {labels[method]: usable(found) for method, found in outcomes.items()}
        _diversity(study.heading(column), f"drift-{column.name}", runs, out)
        ended = {labels[method]: found for method, found in outcomes.items()}
        out.pictures(f"curves-{column.name}", [learning_curves(f"{study.heading(column)}: accuracy", ended)])
        _say_what_ended(ended, out)


def _diversity(title: str, name: str, runs: Mapping[str, Sequence[Run]], out: Output) -> None:
    """A table and a picture over layers, and pictures over rounds."""
    layers = layers_of([run for some in runs.values() for run in some])
    means = {label: [_mean(some, layer) for layer in layers] for label, some in runs.items()}
    rows = [[layer, *(_number(values[k]) for values in means.values())] for k, layer in enumerate(layers)]
    heading = f"{title}: drift diversity by layer, mean over rounds and seeds"
    out.table(name, heading, Table(["layer", *runs], rows))
    indices = [float(k) for k in range(len(layers))]
    by_layer = {label: (indices, values) for label, values in means.items()}
    view = View(name="", x="layer", y="xi", series=by_layer, log=True)
    pictures: list[Drawn] = [Curves(title=f"{title}: drift diversity by layer", views=[view])]
    pictures += [_by_round(layer, runs) for layer in some_of(layers)]
    out.pictures(name, pictures)
    out.page.text("1/N would mean that all clients move alike. Layers are counted from 0, as in the table.")


def _by_round(layer: str, runs: Mapping[str, Sequence[Run]]) -> Curves:
    title = f"drift diversity, {layer}"
    return over_rounds(title, "xi", runs, lambda record: record.layer_drift.get(layer), log=True)


def _say_what_ended(outcomes: Mapping[str, Sequence[Outcome]], out: Output) -> None:
    for name, found in outcomes.items():
        if marks(found):
            out.page.text(f"{name}: {marks(found)}", note=True)


def some_of(layers: Sequence[str]) -> list[str]:
    """The first, a middle and the last layer."""
    return list(dict.fromkeys([layers[0], layers[len(layers) // 2], layers[-1]])) if layers else []


def layers_of(runs: Sequence[Run]) -> list[str]:
    return list(runs[0].rounds[0].layer_drift) if runs else []


def _mean(runs: Sequence[Run], layer: str) -> float | None:
    """Drift diversity of a layer over rounds and seeds; None where it never moved."""
    found = [r.layer_drift[layer] for run in runs for r in run.rounds if layer in r.layer_drift]
    return statistics.fmean(found) if found else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
