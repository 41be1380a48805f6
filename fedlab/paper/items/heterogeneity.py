"""Figures 2a and C.1: which classes each client has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.data import datasets
from common.errors import FedError
from common.page.charts import HeatMap
from fedlab.experiments.bench import Output
from fedlab.paper.columns import Column
from fedlab.paper.data import Shards
from fedlab.paper.study import Study, Wanted
from fedlab.reports.plots import Drawn
from fedlab.reports.tables import Table
from fedserver.worker.partition import class_counts

LEVELS = (0.1, 0.5, 100.0)
"""Dirichlet concentrations of figure 2; at the last, clients are practically alike."""


def no_runs(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """What needs none."""
    return []


def fig2a(study: Study, columns: Sequence[Column], out: Output) -> None:
    """One data set at several concentrations."""
    _show(study, [column.at(alpha) for column in columns for alpha in LEVELS], out)


def fig_c1(study: Study, columns: Sequence[Column], out: Output) -> None:
    """Both data sets, as the tables have them."""
    _show(study, columns, out)


def _show(study: Study, columns: Sequence[Column], out: Output) -> None:
    """A picture for each data set and concentration; the model plays no part."""
    distinct = list({(column.dataset, column.alpha): column for column in columns}.values())
    pictures: list[Drawn] = []
    rows = []
    for column in distinct:
        names = [column.shown_dataset, _source(study, column), f"{column.alpha:g}"]
        try:
            table = _counts(study, column)
        except FedError as error:
            out.page.text(f"{column.shown_dataset}: {error}", note=True)
            rows.append([*names, "no data", "no data"])
            continue
        pictures.append(_picture(study, column, table))
        share = (table.max(1) / table.sum(1)).mean()
        rows.append([*names, f"{(table > 0).sum(1).mean():.1f}", f"{share:.2f}"])
    headings = ["in the paper", "here", "alpha", "classes per client", "share of the largest class"]
    out.table("shards", "Who has what, seed 0", Table(headings, rows))
    out.pictures("shards", pictures)


def _source(study: Study, column: Column) -> str:
    found = study.scale.stand_in(column)
    return f"the first {found.examples:,} of {found.dataset}" if found.examples else found.dataset


def _counts(study: Study, column: Column) -> npt.NDArray[np.int64]:
    """Examples by client and class."""
    stand_in = study.scale.stand_in(column)
    train = datasets.load(stand_in.dataset, "train", study.bench.data_dir)
    clients = study.federated(column, "fedavg", 0).settings["num_clients"]
    shards = Shards(
        dataset=stand_in.dataset,
        examples=stand_in.examples or len(train.labels),
        num_clients=int(str(clients)),
        alpha=column.alpha,
        seed=0,
    )
    return class_counts(shards.drawn(study.bench.data_dir), train.labels, train.num_classes)


def _picture(study: Study, column: Column, table: npt.NDArray[np.int64]) -> HeatMap:
    stand_in = study.scale.stand_in(column)
    names = datasets.load(stand_in.dataset, "train", study.bench.data_dir).class_names
    return HeatMap(
        title=f"{_source(study, column)}, alpha {column.alpha:g}",
        x="class",
        rows_named=[f"client {i}" for i in range(len(table))],
        columns=names,
        values=table.tolist(),
        label="examples",
    )
