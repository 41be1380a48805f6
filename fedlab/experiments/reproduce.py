"""The paper's tables and figures as experiments: which runs they need, and what is made of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from common.data import datasets
from common.models.build import ModelSpec, build_model, tensor_specs
from common.tensors.layout import Purpose
from fedlab.experiments import paper
from fedlab.experiments.cells import Cell, run_cells
from fedlab.experiments.methods import METHODS
from fedlab.experiments.scales import Column, Scale
from fedlab.reports import plots
from fedlab.reports.page import Page
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table
from fedserver.worker.partition import class_counts, dirichlet_partition

IID = 100.0
"""Dirichlet concentration at which clients are practically alike."""


@dataclass(frozen=True)
class Bench:
    """Where an experiment runs and what it may use."""

    scale: Scale
    seeds: int
    jobs: int
    folder: Path
    data_dir: str
    console: Console

    @property
    def runs(self) -> Path:
        """All runs of a scale, shared by its experiments."""
        return self.folder / "runs"

    def cell(self, column: Column, method: str, seed: int, **changes: object) -> Cell:
        """One run of a column."""
        return Cell.of(self.scale.cell(column, method, seed, self.runs, self.data_dir) | changes)

    def central(self, column: Column, seed: int) -> Cell:
        """The pooled baseline: one client that has everything."""
        return Cell.of(self.scale.central(column, seed, self.runs, self.data_dir))

    def run(self, cells: Sequence[Cell]) -> None:
        """Runs what is not there yet."""
        run_cells(cells, self.runs, self.jobs, self.console)

    def read(self, cell: Cell) -> Run:
        """A finished run."""
        return cell.read(self.runs)


def reproduce(what: str, bench: Bench, command: str) -> Path:
    """Runs an experiment and writes its folder; returns the report's path."""
    out = bench.folder / what
    out.mkdir(parents=True, exist_ok=True)
    page = Page(f"{what}, {bench.scale.name} scale")
    page.text(f"Made by `{command}`; all runs are in `{bench.runs}`.")
    EXPERIMENTS[what](bench, out, page)
    page.write(out / "report.html")
    return out / "report.html"


def _table1(bench: Bench, out: Path, page: Page) -> None:
    """Rounds to a target accuracy, and the speed-up over FedAvg."""
    cells = _grid(bench)
    bench.run(list(cells.values()))
    rows, speed_ups = [], []
    for method in METHODS:
        row, speeds = [method], [method]
        for column in bench.scale.columns:
            reached = _rounds(bench, cells, column, method)
            base = _rounds(bench, cells, column, "fedavg")
            row.append(" / ".join(str(r) if r else f"{_length(bench, cells, column)}+" for r in reached))
            pairs = [(b, r) for b, r in zip(base, reached, strict=True) if b and r]
            speeds.append(f"{statistics.mean(b / r for b, r in pairs):.2f}x" if pairs else "-")
        rows.append(row)
        speed_ups.append(speeds)
    targets = [f"{column.name} to {column.target:.0%}" for column in bench.scale.columns]
    _table(
        page, out, "table1", "Rounds to the target, one number per seed", Table(["algorithm", *targets], rows)
    )
    _table(page, out, "speed-up", "Speed-up over FedAvg", Table(["algorithm", *targets], speed_ups))
    published = [[name, *values] for name, values in paper.ROUNDS.items()]
    page.heading("The paper's numbers: rounds to 66 % (CIFAR-10) or 44 % (CIFAR-100)")
    page.table(Table(["algorithm", *_paper_headings()], published))
    _learning_curves(bench, cells, out, page)


def _table2(bench: Bench, out: Path, page: Page) -> None:
    """Top-1 accuracy after all rounds, with what it cost to send."""
    cells = _grid(bench)
    central = {
        (column.name, "centralised", seed): bench.central(column, seed)
        for column in bench.scale.columns
        for seed in range(bench.seeds)
    }
    everything = cells | central
    bench.run(list(everything.values()))
    rows = []
    for method in ("centralised", *METHODS):
        row = [method]
        for column in bench.scale.columns:
            found = [bench.read((cells | central)[column.name, method, seed]) for seed in range(bench.seeds)]
            row.append(_spread([100 * run.accuracy() for run in found]))
        one = everything[bench.scale.columns[0].name, method, 0]
        row.append("-" if method == "centralised" else f"{_floats(bench.read(one)):.4f} d")
        rows.append(row)
    headings = ["algorithm", *(column.name for column in bench.scale.columns), "floats per client and round"]
    title = f"Top-1 accuracy after the last round, in per cent, over {bench.seeds} seeds"
    _table(page, out, "table2", title, Table(headings, rows))
    page.text("Floats are measured for the first column, in units of the number of parameters d.")
    published = [[name, *map(str, values)] for name, values in paper.TOP1.items()]
    page.heading("The paper's numbers: top-1 accuracy after 80 rounds")
    page.table(Table(["algorithm", *_paper_headings()], published))
    _learning_curves(bench, cells, out, page)


def _fig_drift(bench: Bench, out: Path, page: Page) -> None:
    """Drift diversity and similarity of client models by layer, for like and for different clients."""
    column = bench.scale.columns[0]
    alike = Column(column.dataset, column.model, IID, column.target, column.options)
    cases = {
        f"fedavg, a={IID:g}": bench.cell(alike, "fedavg", 0, cka=128),
        **{
            f"{a}, a={column.alpha:g}": bench.cell(column, a, 0, cka=128)
            for a in ("fedavg", "scaffold", "fedpvr")
        },
    }
    bench.run(list(cases.values()))
    runs = {label: bench.read(cell) for label, cell in cases.items()}
    layers = list(next(iter(runs.values())).rounds[0]["layer_drift"])
    rows = []
    figures = []
    for layer in layers:
        series = {label: _over_rounds(run, "layer_drift", layer) for label, run in runs.items()}
        rows.append([layer, *(f"{statistics.mean(ys):.3f}" for _, ys in series.values())])
        if layer in (layers[0], layers[len(layers) // 2], layers[-1]):
            figures.append(plots.curves(f"drift diversity, {layer}", "round", "xi", series, log=True))
            alikeness = {label: _over_rounds(run, "cka", layer) for label, run in runs.items()}
            figures.append(plots.curves(f"CKA between clients, {layer}", "round", "CKA", alikeness))
    _table(page, out, "drift", "Mean drift diversity over the rounds", Table(["layer", *runs], rows))
    _pictures(page, out, "drift", figures)


def _fig_svr_start(bench: Bench, out: Path, page: Page) -> None:
    """Variance reduction from different layers on: from all of them (SCAFFOLD) to none (FedAvg)."""
    column = bench.scale.columns[0]
    names = _parameter_names(column)
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
        rows.append([str(start), label, _spread(accuracies), f"{_floats(found[0]):.3f} d"])
    headings = ["from tensor", "name", "top-1 in per cent", "floats per client and round"]
    _table(page, out, "svr-start", f"FedPVR on {column.name}", Table(headings, rows))
    series = {"FedPVR": (starts, means)}
    figure = plots.curves("variance reduction from tensor k on", "k", "top-1 in per cent", series)
    _pictures(page, out, "svr-start", [figure])


def _fig_conformal(bench: Bench, out: Path, page: Page) -> None:
    """Coverage against size of conformal prediction sets."""
    column = bench.scale.columns[0]
    cells = {method: bench.cell(column, method, 0) for method in METHODS}
    bench.run(list(cells.values()))
    runs = {method: bench.read(cell) for method, cell in cells.items()}
    rows = [
        [name, *(f"{s['coverage']:.3f} with {s['mean_size']:.2f}" for s in run.conformal)]
        for name, run in runs.items()
    ]
    kappas = [f"kappa {s['kappa']:g}" for s in next(iter(runs.values())).conformal]
    _table(page, out, "conformal", "Coverage with mean set size", Table(["algorithm", *kappas], rows))
    series = {
        name: ([s["mean_size"] for s in run.conformal], [s["coverage"] for s in run.conformal])
        for name, run in runs.items()
    }
    _pictures(page, out, "conformal", [plots.curves(column.name, "mean set size", "coverage", series)])


def _fig_partition(bench: Bench, out: Path, page: Page) -> None:
    """Which classes each client has, at several concentrations."""
    column = bench.scale.columns[0]
    train = datasets.load(column.dataset, "train", bench.data_dir)
    num_clients = int(bench.scale.settings.get("num_clients", 10))
    figures, rows = [], []
    for alpha in (0.1, 0.5, 1.0, IID):
        shards = dirichlet_partition(train.labels, num_clients, alpha, seed=0)
        counts = class_counts(shards, train.labels, train.num_classes)
        clients = [f"client {i}" for i in range(num_clients)]
        title = f"{column.dataset}, alpha {alpha:g}"
        figures.append(plots.heat_map(title, "class", clients, counts.tolist(), "examples"))
        share = (counts.max(1) / counts.sum(1)).mean()
        rows.append([f"{alpha:g}", f"{(counts > 0).sum(1).mean():.1f}", f"{share:.2f}"])
    headings = ["alpha", "classes per client", "share of the largest class"]
    _table(page, out, "partition", f"{num_clients} clients of {column.dataset}", Table(headings, rows))
    _pictures(page, out, "partition", figures)


EXPERIMENTS: dict[str, Callable[[Bench, Path, Page], None]] = {
    "table1": _table1,
    "table2": _table2,
    "fig-drift": _fig_drift,
    "fig-svr-start": _fig_svr_start,
    "fig-conformal": _fig_conformal,
    "fig-partition": _fig_partition,
}

Cells = dict[tuple[str, str, int], Cell]


def _grid(bench: Bench) -> Cells:
    """Every method on every column, with every seed."""
    return {
        (column.name, method, seed): bench.cell(column, method, seed)
        for column in bench.scale.columns
        for method in METHODS
        for seed in range(bench.seeds)
    }


def _rounds(bench: Bench, cells: Cells, column: Column, method: str) -> list[int | None]:
    return [
        bench.read(cells[column.name, method, seed]).rounds_to(column.target) for seed in range(bench.seeds)
    ]


def _length(bench: Bench, cells: Cells, column: Column) -> int:
    return len(bench.read(cells[column.name, "fedavg", 0]).rounds)


def _floats(run: Run) -> float:
    """Model and control payload per client and round, in units of the model sent once."""
    counts = run.bytes_per_client_and_round()
    return 2 * (counts["model"] + counts["control"]) / counts["model"]


def _spread(values: list[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {statistics.stdev(values):.1f}"


def _over_rounds(run: Run, key: str, name: str) -> tuple[list[float], list[float]]:
    records = [record for record in run.rounds if name in record.get(key, {})]
    return [float(record["round"]) for record in records], [float(record[key][name]) for record in records]


def _parameter_names(column: Column) -> list[str]:
    spec = ModelSpec(
        name=column.model,
        num_classes=100 if column.dataset == "cifar100" else 10,
        image_shape=(1, 8, 8) if column.dataset == "digits" else (3, 32, 32),
    )
    tensors = tensor_specs(build_model(spec, seed=0))
    return [tensor.name for tensor in tensors if tensor.purpose is Purpose.MODEL]


def _learning_curves(bench: Bench, cells: Cells, out: Path, page: Page) -> None:
    page.heading("Learning curves, seed 0")
    figures = []
    for column in bench.scale.columns:
        series = {a: bench.read(cells[column.name, a, 0]).accuracy_over("round") for a in METHODS}
        figures.append(plots.curves(column.name, "round", "accuracy in per cent", series, percent=True))
    for number, figure in enumerate(figures):
        plots.save(figure, out, f"curves-{number}")
    page.pictures(figures)


def _paper_headings() -> list[str]:
    return [f"{dataset} {model} a={alpha:g}" for dataset, model, alpha in paper.COLUMNS]


def _table(page: Page, out: Path, name: str, title: str, table: Table) -> None:
    table.save(out, name)
    page.heading(title)
    page.table(table)


def _pictures(page: Page, out: Path, name: str, figures: list[Figure]) -> None:
    for number, figure in enumerate(figures):
        plots.save(figure, out, f"{name}-{number}")
    page.pictures(figures)
