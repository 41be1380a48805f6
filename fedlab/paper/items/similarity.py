"""Figure 2b: how alike the models of clients are, layer by layer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from common.page.charts import Curves, HeatMap
from common.records.cka import CkaRecord, read_cka
from fedlab.engine.outcome import usable
from fedlab.experiments.bench import Output
from fedlab.paper.columns import Column
from fedlab.paper.items.drift import layers_of, levels, some_of
from fedlab.paper.items.parts import over_rounds
from fedlab.paper.study import Study
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table


def fig2b(study: Study, columns: Sequence[Column], out: Output) -> None:
    """CKA between clients: the mean over pairs by round, and a matrix for some layers and concentrations."""
    for column in columns:
        runs = {name: usable(study.outcomes(found)) for name, found in levels(study, column).items()}
        layers = layers_of([run for some in runs.values() for run in some])
        rows = [[layer, *(_mean(some, layer) for some in runs.values())] for layer in layers]
        title = f"{study.heading(column)}: CKA between clients, mean over pairs, rounds and seeds"
        out.table(f"cka-{column.name}", title, Table(["layer", *runs], rows))
        out.pictures(f"cka-{column.name}", [_curves(layer, runs) for layer in some_of(layers)])
        last = {name: list(read_cka(some[0].path))[-1] for name, some in runs.items() if some}
        out.page.heading(f"{study.heading(column)}: client by client, last round, seed 0")
        pairs = [(layer, name, record) for layer in some_of(layers) for name, record in last.items()]
        out.pictures(f"matrix-{column.name}", [_matrix(*pair) for pair in pairs])
        for record in list(last.values())[:1]:
            out.page.text(
                f"Estimator: {record.estimator}, on {record.images} test images. The paper says neither "
                "which it uses nor on how many images."
            )


def _curves(layer: str, runs: dict[str, list[Run]]) -> Curves:
    return over_rounds(f"CKA, {layer}", "CKA", runs, lambda record: (record.cka or {}).get(layer))


def _mean(runs: Sequence[Run], layer: str) -> str:
    found = [
        value for run in runs for record in run.rounds if (value := (record.cka or {}).get(layer)) is not None
    ]
    return f"{statistics.fmean(found):.3f}" if found else "-"


def _matrix(layer: str, name: str, record: CkaRecord) -> HeatMap:
    return HeatMap(
        title=f"{layer}, {name}, round {record.round}",
        x="client",
        rows_named=record.clients,
        columns=record.clients,
        values=record.layers[layer],
        label="CKA",
        top=1.0,
    )
