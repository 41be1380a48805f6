"""The paper's figures as runs."""

from __future__ import annotations

import statistics

from common.models.build import build_model, tensor_specs
from common.models.spec import ModelSpec
from common.page.charts import Curves, HeatMap, Series, View
from common.records.conformal import PredictionSets
from common.tensors.layout import Purpose
from fedlab.experiments.bench import Bench, Output, floats, spread
from fedlab.experiments.methods import METHODS
from fedlab.experiments.scales import Column
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table
from fedserver.worker.partition import class_counts, dirichlet_partition

IID = 100.0
"""Dirichlet concentration at which clients are practically alike."""
CKA_IMAGES = 512
"""Unrelated representations are then found to be within 0.02 of 0."""
SHOWN_KAPPAS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
"""In the table; the picture has all."""


def drift(bench: Bench, out: Output) -> None:
    """Drift diversity and similarity of client models by layer, for like and for different clients."""
    column = bench.scale.columns[0]
    alike = Column(column.dataset, column.model, IID, column.target, column.options)
    cases = {
        f"fedavg, a={IID:g}": bench.cell(alike, "fedavg", 0, cka=CKA_IMAGES),
        **{
            f"{a}, a={column.alpha:g}": bench.cell(column, a, 0, cka=CKA_IMAGES)
            for a in ("fedavg", "scaffold", "fedpvr")
        },
    }
    bench.run(list(cases.values()))
    runs = {label: bench.read(cell) for label, cell in cases.items()}
    layers = list(next(iter(runs.values())).rounds[0].layer_drift)
    rows = []
    figures = []
    for layer in layers:
        series = {label: _over_rounds(run, layer) for label, run in runs.items()}
        rows.append([layer, *(f"{statistics.mean(ys):.3f}" for _, ys in series.values())])
        if layer in (layers[0], layers[len(layers) // 2], layers[-1]):
            figures.append(_curves(f"drift diversity, {layer}", "round", "xi", series, log=True))
            alikeness = {label: _over_rounds(run, layer, cka=True) for label, run in runs.items()}
            figures.append(_curves(f"CKA between clients, {layer}", "round", "CKA", alikeness))
    out.table("drift", "Mean drift diversity over the rounds", Table(["layer", *runs], rows))
    out.pictures("drift", [*figures])


def svr_start(bench: Bench, out: Output) -> None:
    """Variance reduction from different layers on: from all of them (SCAFFOLD) to none (FedAvg)."""
    column = bench.scale.columns[0]
    names = _parameter_names(bench, column)
    starts = sorted({0, len(names) // 4, len(names) // 2, 3 * len(names) // 4, len(names) - 2, len(names)})
    cells = {
        (start, seed): bench.cell(column, "fedpvr", seed, svr=names[start:] or ["none"])
        for start in starts
        for seed in range(bench.seeds)
    }
    bench.run(list(cells.values()))
    rows, means = [], []
    for start in starts:
        found = [bench.read(cells[start, seed]) for seed in range(bench.seeds)]
        accuracies = [100 * run.accuracy() for run in found]
        means.append(statistics.mean(accuracies))
        label = names[start] if start < len(names) else "none (FedAvg)"
        rows.append([str(start), label, spread(accuracies), f"{floats(found[0]):.3f} d"])
    headings = ["from tensor", "name", "top-1 in per cent", "floats per client and round"]
    out.table("svr-start", f"FedPVR on {column.name}", Table(headings, rows))
    series = {"FedPVR": (starts, means)}
    figure = _curves("variance reduction from tensor k on", "k", "top-1 in per cent", series)
    out.pictures("svr-start", [figure])


def conformal(bench: Bench, out: Output) -> None:
    """Coverage against size of conformal prediction sets."""
    column = bench.scale.columns[0]
    cells = {method: bench.cell(column, method, 0) for method in METHODS}
    bench.run(list(cells.values()))
    runs = {method: bench.read(cell) for method, cell in cells.items()}
    rows = [
        [name, *(f"{s.coverage:.3f} with {s.mean_size:.2f}" for s in _shown(run))]
        for name, run in runs.items()
    ]
    kappas = [f"kappa {s.kappa:g}" for s in _shown(next(iter(runs.values())))]
    out.table("conformal", "Coverage with mean set size", Table(["algorithm", *kappas], rows))
    series = {
        name: ([s.mean_size for s in run.conformal], [s.coverage for s in run.conformal])
        for name, run in runs.items()
    }
    out.pictures("conformal", [_curves(column.name, "mean set size", "coverage", series)])


def _shown(run: Run) -> list[PredictionSets]:
    return [sets for sets in run.conformal if sets.kappa in SHOWN_KAPPAS]


def partition(bench: Bench, out: Output) -> None:
    """Which classes each client has, at several concentrations."""
    column = bench.scale.columns[0]
    train = bench.dataset(column)
    num_clients = bench.scale.num_clients
    figures, rows = [], []
    tables = {
        alpha: class_counts(
            dirichlet_partition(train.labels, num_clients, alpha, seed=0), train.labels, train.num_classes
        )
        for alpha in (0.1, 0.5, 1.0, IID)
    }
    for alpha, counts in tables.items():
        clients = [f"client {i}" for i in range(num_clients)]
        title = f"{column.dataset}, alpha {alpha:g}"
        figures.append(
            HeatMap(
                title=title,
                x="class",
                rows_named=clients,
                columns=train.class_names,
                values=counts.tolist(),
                label="examples",
                top=float(max(table.max() for table in tables.values())),
            )
        )
        share = (counts.max(1) / counts.sum(1)).mean()
        rows.append([f"{alpha:g}", f"{(counts > 0).sum(1).mean():.1f}", f"{share:.2f}"])
    headings = ["alpha", "classes per client", "share of the largest class"]
    out.table("partition", f"{num_clients} clients of {column.dataset}", Table(headings, rows))
    out.pictures("partition", [*figures])


def _curves(title: str, x: str, y: str, series: Series, *, log: bool = False) -> Curves:
    return Curves(title=title, views=[View(name="", x=x, y=y, series=series, log=log)])


def _over_rounds(run: Run, layer: str, *, cka: bool = False) -> tuple[list[float], list[float]]:
    """Drift diversity of a layer, or similarity of clients there, in the rounds that have it."""
    found = {r.round: ((r.cka or {}) if cka else r.layer_drift).get(layer) for r in run.rounds}
    known = {float(number): value for number, value in found.items() if value is not None}
    return list(known), list(known.values())


def _parameter_names(bench: Bench, column: Column) -> list[str]:
    train = bench.dataset(column)
    spec = ModelSpec(name=column.model, num_classes=train.num_classes, image_shape=train.image_shape)
    tensors = tensor_specs(build_model(spec, seed=0))
    return [tensor.name for tensor in tensors if tensor.purpose is Purpose.MODEL]
