"""The part of a report on how runs learned: over rounds, over bytes, and over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from common.bit_rate import bits_per_second
from common.page.charts import Curves, HeatMap, Series, View
from common.page.page import Page
from common.records.rounds import RoundRecord
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table


def write_learning(page: Page, runs: Mapping[str, Run], link: str) -> None:
    """Adds it."""
    page.heading("How they learned")
    speed = bits_per_second("--link", link)
    page.charts([Curves(title="accuracy, and losses", views=_views(runs, link, speed))], wide=True)
    page.text(
        "Bytes are those of one client, down and up. Time is the slowest client's training in each round"
        f" and what the bytes of a client take on a link of {link}, down and up one after the other.",
        note=True,
    )
    _times(page, runs, speed, link)
    maps = [chart for label, run in runs.items() if (chart := _classes(label, run)) is not None]
    if maps:
        page.heading("Accuracy by class")
        page.charts(maps)


def _views(runs: Mapping[str, Run], link: str, speed: float) -> list[View]:
    def over(unit: str) -> Series:
        return {label: run.accuracy_over(unit, speed) for label, run in runs.items()}

    views = [
        View(name="over rounds", x="round", y="accuracy", series=over("round"), percent=True),
        View(name="over bytes", x="MB", y="accuracy", series=over("megabytes"), percent=True),
        View(
            name=f"over time on a link of {link}",
            x="seconds",
            y="accuracy",
            series=over("seconds"),
            percent=True,
        ),
        View(name="loss", x="round", y="loss", series=_over_rounds(runs, lambda record: record.loss)),
        View(
            name="training loss",
            x="round",
            y="training loss",
            series=_over_rounds(runs, lambda record: record.train_loss),
        ),
        View(
            name="at the clients' validation shares",
            x="round",
            y="accuracy",
            series=_over_rounds(runs, lambda record: record.validation_accuracy),
            percent=True,
        ),
        *_head_gap(runs),
    ]
    return [view for view in views if view.series]


def _head_gap(runs: Mapping[str, Run]) -> list[View]:
    """What another classifier on the same features would win, of the runs with --probe."""
    gap = _over_rounds(runs, lambda record: record.head_gap)
    probe = _over_rounds(runs, lambda record: record.probe_accuracy)
    return [
        View(name="head gap", x="round", y="accuracy of the probe less that of x", series=gap, percent=True),
        View(name="probe", x="round", y="accuracy of the probe", series=probe, percent=True),
    ]


def _over_rounds(runs: Mapping[str, Run], value: Callable[[RoundRecord], float | None]) -> Series:
    """A number of each round, of the runs that have any."""
    series = {}
    for label, run in runs.items():
        known = [(float(record.round), each) for record in run.rounds if (each := value(record)) is not None]
        if known:
            series[label] = [x for x, _ in known], [y for _, y in known]
    return series


def _times(page: Page, runs: Mapping[str, Run], speed: float, link: str) -> None:
    """Time to a few accuracies, up to what the worst run has reached."""
    worst = min(max(run.accuracy_over("round")[1]) for run in runs.values())
    targets = [worst * share for share in (0.7, 0.85, 1.0)]
    rows = []
    for label, run in runs.items():
        times = (run.seconds_to(target, speed) for target in targets)
        rows.append([label, *("-" if seconds is None else f"{seconds:,.1f} s" for seconds in times)])
    page.heading(f"Time to an accuracy on a link of {link}")
    page.table(Table(["run", *(f"{target:.1%}" for target in targets)], rows))


def _classes(label: str, run: Run) -> HeatMap | None:
    evaluated = [record for record in run.rounds if record.class_accuracy]
    names = run.config.class_names
    if not evaluated or any(len(record.class_accuracy or ()) != len(names) for record in evaluated):
        return None
    values = [[_at(record, k) for record in evaluated] for k in range(len(names))]
    return HeatMap(
        title=label,
        x="round",
        rows_named=names,
        columns=[str(record.round) for record in evaluated],
        values=values,
        label="accuracy",
        top=1.0,
    )


def _at(record: RoundRecord, k: int) -> float | None:
    return None if record.class_accuracy is None else record.class_accuracy[k]
