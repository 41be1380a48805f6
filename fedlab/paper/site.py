"""One page that leads to all tables and figures of a scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.page.page import Page
from fedlab.paper.catalogue import ITEMS
from fedlab.paper.reproduce import Made
from fedlab.paper.study import Study


def write_index(study: Study, made: Sequence[Made]) -> Path:
    """Links every item that has a page by now, also of earlier starts, and shows the tables of these."""
    scale, folder = study.scale, study.bench.folder
    page = Page(
        f"FedPVR: tables and figures, {scale.name} scale",
        lead="Li, Schmidt, Alstroem, Stich: On the Effectiveness of Partial Variance Reduction in "
        "Federated Learning with Heterogeneous Data, CVPR 2023. The pages of its tables, and of "
        "figure 1, have the paper's numbers beside ours.",
    )
    page.text(scale.text)
    page.heading("Tables and figures")
    there = [item for item in ITEMS.values() if (folder / item.name / "report.html").exists()]
    page.links((f"{item.name}/report.html", item.title, item.shows) for item in there)
    page.text("The paper's table 1 is its notation.", note=True)
    for each in made:
        if each.item.name in ("table2", "table3"):
            title, table = next(iter(each.tables.items()))
            page.heading(f"{each.item.title}: {title}")
            page.table(table)
    path = folder / "index.html"
    page.write(path)
    return path
