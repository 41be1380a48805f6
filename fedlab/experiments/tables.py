"""The paper's tables 1 and 2 as runs."""

from __future__ import annotations

import statistics

from common.page.charts import Curves, View
from fedlab.engine.cells import Cell
from fedlab.experiments import paper
from fedlab.experiments.bench import Bench, Output, floats, spread
from fedlab.experiments.methods import METHODS
from fedlab.experiments.scales import Column
from fedlab.reports.tables import Table

Cells = dict[tuple[str, str, int], Cell]
"""Runs by column, method and seed."""


def table1(bench: Bench, out: Output) -> None:
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
    out.table("table1", "Rounds to the target, one number per seed", Table(["algorithm", *targets], rows))
    out.table("speed-up", "Speed-up over FedAvg", Table(["algorithm", *targets], speed_ups))
    published = [[name, *values] for name, values in paper.ROUNDS.items()]
    out.page.heading("The paper's numbers: rounds to 66 % (CIFAR-10) or 44 % (CIFAR-100)")
    out.page.table(Table(["algorithm", *_paper_headings()], published))
    _learning_curves(bench, cells, out)


def table2(bench: Bench, out: Output) -> None:
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
            found = [bench.read(everything[column.name, method, seed]) for seed in range(bench.seeds)]
            row.append(spread([100 * run.accuracy() for run in found]))
        one = everything[bench.scale.columns[0].name, method, 0]
        row.append("-" if method == "centralised" else f"{floats(bench.read(one)):.4f} d")
        rows.append(row)
    headings = ["algorithm", *(column.name for column in bench.scale.columns), "floats per client and round"]
    title = f"Top-1 accuracy after the last round, in per cent, over {bench.seeds} seeds"
    out.table("table2", title, Table(headings, rows))
    out.page.text("Floats are measured for the first column, in units of the number of parameters d.")
    published = [[name, *map(str, values)] for name, values in paper.TOP1.items()]
    out.page.heading("The paper's numbers: top-1 accuracy after 80 rounds")
    out.page.table(Table(["algorithm", *_paper_headings()], published))
    _learning_curves(bench, cells, out)


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


def _learning_curves(bench: Bench, cells: Cells, out: Output) -> None:
    out.page.heading("Learning curves, seed 0")
    figures = []
    for column in bench.scale.columns:
        series = {a: bench.read(cells[column.name, a, 0]).accuracy_over("round") for a in METHODS}
        view = View(name="", x="round", y="accuracy", series=series, percent=True)
        figures.append(Curves(title=column.name, views=[view]))
    out.pictures("curves", [*figures])


def _paper_headings() -> list[str]:
    return [f"{dataset} {model} a={alpha:g}" for dataset, model, alpha in paper.COLUMNS]
