"""Makes items of the catalogue: runs what they need, and writes a folder with a page for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.page.page import Page
from fedlab.experiments.bench import Output
from fedlab.paper.catalogue import Item
from fedlab.paper.columns import COLUMNS, Column
from fedlab.paper.items import concept, conformal, drift, heterogeneity, similarity, svr_start, tables
from fedlab.paper.items.parts import stand_ins
from fedlab.paper.study import Study, Wanted
from fedlab.reports.tables import Table


@dataclass(frozen=True)
class Maker:
    """How an item is made."""

    runs: Callable[[Study, Sequence[Column]], list[Wanted]]
    write: Callable[[Study, Sequence[Column], Output], None]


MAKERS = {
    "table2": Maker(tables.trained, tables.table2),
    "table3": Maker(tables.table3_runs, tables.table3),
    "tableC1": Maker(heterogeneity.no_runs, tables.step_sizes),
    "tableC2": Maker(heterogeneity.no_runs, tables.step_sizes),
    "fig1": Maker(concept.runs, concept.fig1),
    "fig2a": Maker(heterogeneity.no_runs, heterogeneity.fig2a),
    "fig2b": Maker(drift.fig2_runs, similarity.fig2b),
    "fig2c": Maker(drift.fig2_runs, drift.fig2c),
    "fig3": Maker(conformal.runs, conformal.fig3),
    "fig4": Maker(drift.compared_runs, drift.diversity_and_learning),
    "fig5": Maker(svr_start.runs, svr_start.svr_start),
    "figC1": Maker(heterogeneity.no_runs, heterogeneity.fig_c1),
    "figC2": Maker(svr_start.runs, svr_start.svr_start),
    "figC3": Maker(drift.compared_runs, drift.diversity_and_learning),
    "figC4": Maker(conformal.runs, conformal.fig_c4),
}
"""By the names of the catalogue."""


@dataclass(frozen=True)
class Made:
    """What came of an item."""

    item: Item
    report: Path
    tables: dict[str, Table]
    """By title."""


def columns_of(item: Item, chosen: Sequence[str]) -> list[Column]:
    """The columns that were asked for, or the paper's own for the item."""
    return [COLUMNS[name] for name in chosen or item.columns]


def runs_of(item: Item, study: Study, chosen: Sequence[str]) -> list[Wanted]:
    """The runs that an item needs, each once."""
    return list(dict.fromkeys(MAKERS[item.name].runs(study, columns_of(item, chosen))))


def reproduce(items: Sequence[Item], study: Study, chosen: Sequence[str]) -> list[Made]:
    """Runs what the items need, all together, and writes them."""
    wanted = [each for item in items for each in runs_of(item, study, chosen)]
    study.run(list(dict.fromkeys(wanted)))
    return [_written(item, study, columns_of(item, chosen)) for item in items]


def _written(item: Item, study: Study, columns: Sequence[Column]) -> Made:
    folder = study.bench.folder / item.name
    folder.mkdir(parents=True, exist_ok=True)
    chosen = (
        "".join(f" --column {c.name}" for c in columns)
        if [c.name for c in columns] != [*item.columns]
        else ""
    )
    seeds = f" --seeds {study.seeds}" if study.seeds > 1 else ""
    command = f"fedlab reproduce {item.name} --scale {study.scale.name}{seeds}{chosen}"
    page = Page(f"{item.title}, {study.scale.name} scale", lead=item.shows)
    page.text(f"Made by `{command}`; all runs are in `{study.bench.runs}`.")
    page.text(study.scale.text)
    if study.scale.stand_ins:
        page.table(stand_ins(study, columns), folded="what stands for the paper's columns")
    output = Output(folder, page)
    MAKERS[item.name].write(study, columns, output)
    page.write(folder / "report.html")
    return Made(item, folder / "report.html", output.tables)
