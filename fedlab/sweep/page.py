"""What a sweep leaves for people and programs: tables, pictures, one page, one JSON document."""

from __future__ import annotations

from pathlib import Path

from common.page.charts import Curves, View
from common.page.page import Page
from fedlab.experiments.bench import Output
from fedlab.reports.paired import Bound, Interval, band, interval, mean_speed_up
from fedlab.reports.tables import Table
from fedlab.sweep.form import Sweep
from fedlab.sweep.plan import named, shown
from fedlab.sweep.results import Entry, difference
from fedlab.sweep.tables import Results


def write_page(results: Results, folder: Path, command: str) -> Path:
    """Writes tables and pictures into a folder, and report.html with all of them."""
    sweep = results.sweep
    page = Page(sweep.title, sweep.question)
    page.text(f"Made by `{command}`; all runs are in `{folder / 'runs'}`.")
    output = Output(folder, page)
    for name, (title, table) in results.tables().items():
        output.table(name, title, table)
        if name == "search":
            _explain_search(sweep, page)
    _explain_bounds(sweep, page)
    page.heading("Learning curves")
    page.text(
        f"Mean over the seeds with its 95 % interval (percentile bootstrap): {_seeds(sweep)}. "
        "A curve ends where its first seed does, and one that diverged or failed is not in it."
    )
    output.pictures("curves", [_curves(results, point) for point in results.points])
    _settings(results, page)
    _without_value(results, page)
    report = folder / "report.html"
    page.write(report)
    return report


def _explain_search(sweep: Sweep, page: Page) -> None:
    fewer = sweep.search.rounds
    rounds = "as many rounds as the others" if fewer is None else f"{fewer} rounds"
    page.text(
        f"Each combination ran for {rounds} with {sweep.search.seeds} of the seeds. The best on the clients' "
        "validation shares is taken; the test set has no say."
    )


def _explain_bounds(sweep: Sweep, page: Page) -> None:
    if sweep.report.targets:
        page.text(
            "`>20`: a run that had not reached the target after 20 rounds; what is made of it is a bound. "
            "`-`: nothing is known, because neither has reached it in some seed.",
            note=True,
        )
    if sweep.report.stop_at_target:
        page.text("Runs end at the last target, so there is no accuracy after all rounds.", note=True)


def _curves(results: Results, point: str) -> Curves:
    bands = {method: band(results.entries[method, point].curves()) for method in results.sweep.methods}
    view = View(
        name="",
        x="round",
        y="accuracy",
        series={name: (found.xs, found.mean) for name, found in bands.items() if found.xs},
        bands={name: (found.low, found.high) for name, found in bands.items() if found.xs},
        percent=True,
    )
    return Curves(title=point or results.sweep.title, views=[view])


def _settings(results: Results, page: Page) -> None:
    sweep = results.sweep
    page.heading("Settings")
    tables = {"all runs": sweep.settings, "prepare": sweep.prepare or {}}
    tables |= {name: method.settings for name, method in sweep.methods.items()}
    rows = [[table, name, shown(value)] for table, found in tables.items() for name, value in found.items()]
    page.table(Table(["of", "setting", "value"], rows))
    found = [
        [entry.method, named(entry.point) or "all", named(entry.chosen)]
        for entry in results.entries.values()
        if entry.chosen
    ]
    if found:
        page.table(Table(["method", "at", "found by the search"], found))


def _without_value(results: Results, page: Page) -> None:
    rows = [
        [entry.method, named(entry.point) or "all", str(seed), outcome.text(), str(outcome.log or "")]
        for entry in results.entries.values()
        for seed, outcome in entry.outcomes.items()
        if outcome.mark
    ]
    if rows:
        page.heading("Runs without a value")
        page.table(Table(["method", "at", "seed", "why", "log"], rows))


def _seeds(sweep: Sweep) -> str:
    return ", ".join(map(str, sweep.report.all_seeds))


def document(results: Results, report: Path) -> dict[str, object]:
    """Everything as JSON has it: numbers as numbers, bounds as a number and a sign."""
    sweep = results.sweep
    return {
        "title": sweep.title,
        "question": sweep.question,
        "baseline": sweep.baseline,
        "seeds": list(sweep.report.all_seeds),
        "report": str(report),
        "search": [
            {
                "method": each.method,
                "at": dict(each.point),
                "values": each.values,
                "outcomes": [outcome.text() for outcome in each.outcomes],
                "validation_accuracy": each.accuracy,
                "chosen": each.chosen,
            }
            for each in results.tried
        ],
        "entries": [_entry(results, entry) for entry in results.entries.values()],
    }


def _entry(results: Results, entry: Entry) -> dict[str, object]:
    last, baseline = results.sweep.report.score, results.baseline(entry)
    scores = {} if results.sweep.report.stop_at_target else entry.scores(last)
    found = difference(entry, baseline, last) if scores and entry is not baseline else None
    return {
        "method": entry.method,
        "at": dict(entry.point),
        "chosen": entry.chosen,
        "outcomes": {str(seed): outcome.text() for seed, outcome in entry.outcomes.items()},
        "accuracy": {str(seed): value for seed, value in scores.items()},
        "mean": _interval(interval(list(scores.values()))) if scores else None,
        "difference": _interval(found),
        "targets": [
            {
                "target": target,
                "rounds": {
                    str(seed): {"rounds": reached.rounds, "censored": reached.censored}
                    for seed, reached in entry.reached(target).items()
                },
                "speed_up": _bound(mean_speed_up(entry.reached(target), baseline.reached(target))),
            }
            for target in results.sweep.report.targets
        ],
    }


def _interval(found: Interval | None) -> dict[str, float | None] | None:
    return None if found is None else {"mean": found.mean, "low": found.low, "high": found.high}


def _bound(found: Bound | None) -> dict[str, float | str] | None:
    return None if found is None else {"value": found.value, "sign": found.sign}
