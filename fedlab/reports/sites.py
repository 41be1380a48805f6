"""The part of a report on evaluation where the data are: by site, all together, the worst site."""

from __future__ import annotations

from common.page.charts import Curves, View
from common.page.page import Page
from common.records.sites import SitesRecord
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table


def write_sites(page: Page, label: str, run: Run) -> None:
    """Adds it, if clients of the run have evaluated x."""
    evaluated = [(record.round, record.sites) for record in run.rounds if record.sites is not None]
    if not evaluated:
        return
    r, last = evaluated[-1]
    page.heading(f"{label}: x after round {r} at the sites")
    page.table(_metrics(last))
    page.text(
        "Metrics of all sites together follow from the sum of their counts, so that each weighs what its "
        "examples do; AUROC, which has no common counts, is their mean, weighted by examples."
    )
    for name, reason in last.absent.items():
        page.text(f"{name} is missing: {reason}")
    page.table(_classes(last))
    if any(site.auroc for site in last.sites.values()):
        page.table(_areas(last))
        page.text("Intervals hold in 95 of 100 cases, by Hanley and McNeil (1982).")
    views = [
        View(
            name=metric,
            x="round",
            y=metric,
            series={
                site: ([float(n) for n, _ in points], [value for _, value in points])
                for site in ("all together", *last.sites)
                if (points := _values(run, site, metric))
            },
        )
        for metric in last.metrics
    ]
    page.charts([Curves(title="by site", views=views)], wide=True)


def _values(run: Run, site: str, metric: str) -> list[tuple[int, float]]:
    """A metric over the rounds, at one site or at all together."""
    found = []
    for record in run.rounds:
        if record.sites is None:
            continue
        here = record.sites.sites.get(site)
        values = record.sites.metrics if here is None else here.metrics
        value = values.get(metric) if here is not None or site == "all together" else None
        if value is not None:
            found.append((record.round, value))
    return found


def _metrics(last: SitesRecord) -> Table:
    rows = [["all together", str(last.examples), *map(_number, last.metrics.values())]]
    for name, site in last.sites.items():
        shown = f"{name} (worst)" if name == last.worst else name
        rows.append([shown, str(site.counts.examples), *map(_number, site.metrics.values())])
    return Table(["site", "examples", *last.metrics], rows)


def _classes(last: SitesRecord) -> Table:
    rows = [
        [name, str(each.support), _number(each.recall), _number(each.f1)]
        for name, each in last.classes.items()
    ]
    return Table(["class", "examples", "recall", "F1"], rows)


def _areas(last: SitesRecord) -> Table:
    rows = [
        [name, a.label, _number(a.value), f"{a.low:.4f} to {a.high:.4f}", str(a.positives), str(a.negatives)]
        for name, site in last.sites.items()
        for a in site.auroc
    ]
    return Table(["site", "class", "AUROC", "95 % interval", "of the class", "others"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
