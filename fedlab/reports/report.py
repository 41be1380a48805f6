"""A report on any runs: how they learned, what they sent, where clients drifted apart."""

from __future__ import annotations

from pathlib import Path

from common.page.charts import Curves, HeatMap, View
from common.page.page import Page
from common.records.conformal import ConformalRecord
from fedlab.reports.learning import write_learning
from fedlab.reports.runs import Run, read_run
from fedlab.reports.sites import write_sites
from fedlab.reports.tables import Table
from fedlab.reports.traffic import write_traffic

MAX_LABEL = 32


def write_report(run_dirs: list[Path], out: Path, link: str) -> Table:
    """Writes one self-contained page about these runs, and returns the table that opens it."""
    found = [read_run(path) for path in run_dirs]
    runs = dict(zip(_labels(run_dirs, found), found, strict=True))
    page = Page("Runs: " + ", ".join(runs))
    page.heading("Summary")
    summary = _summary(runs)
    page.table(summary)
    write_learning(page, runs, link)
    write_traffic(page, runs)
    _drift(page, runs)
    for label, run in runs.items():
        write_sites(page, label, run)
    _conformal(page, runs)
    _shards(page, runs)
    _settings(page, runs)
    page.write(out)
    return summary


def _labels(run_dirs: list[Path], runs: list[Run]) -> list[str]:
    """Short names for a legend: the algorithm where that tells runs apart, else the folder."""
    for candidates in ([run.method for run in runs], [path.name for path in run_dirs]):
        short = [name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 3]}..." for name in candidates]
        if len(set(short)) == len(short):
            return short
    return [f"{number}: {run.method}" for number, run in enumerate(runs)]


def _summary(runs: dict[str, Run]) -> Table:
    rows = []
    for label, run in runs.items():
        config = run.config
        total, socket = sum(run.bytes_per_client_and_round().values()), run.socket_per_client_and_round()
        rows.append(
            [
                label,
                run.method,
                f"{config.model} on {config.dataset}",
                str(len(run.rounds)),
                f"{run.accuracy():.2%}",
                f"{run.seconds_per_round():.1f}",
                f"{total:,.0f}",
                "-" if socket is None else f"{socket:,.0f}",
            ]
        )
    per = "per client and round"
    headings = [
        "run",
        "method",
        "task",
        "rounds",
        "accuracy",
        "seconds per round",
        f"bytes {per}",
        f"on the socket {per}",
    ]
    return Table(headings, rows)


def _settings(page: Page, runs: dict[str, Run]) -> None:
    """How the runs were set: what differs, and everything."""
    settings = {label: run.config.settings for label, run in runs.items()}
    names = list(dict.fromkeys(name for each in settings.values() for name in each))
    rows = [[name, *(_setting(each.get(name)) for each in settings.values())] for name in names]
    differ = [row for row in rows if len(set(row[1:])) > 1]
    page.heading("Settings")
    if differ:
        page.table(Table(["what differs", *runs], differ))
    page.table(Table(["setting", *runs], rows), folded="all settings")
    known = [[label, run.config.run_id, run.path.name] for label, run in runs.items()]
    page.table(Table(["run", "id", "directory"], known), folded="where the runs are")


def _setting(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else "-" if value is None else str(value)


def _conformal(page: Page, runs: dict[str, Run]) -> None:
    series = {
        label: ([s.mean_size for s in run.conformal], [s.coverage for s in run.conformal])
        for label, run in runs.items()
        if run.conformal
    }
    if series:
        page.heading("Conformal prediction sets of the final model")
        view = View(name="", x="mean set size", y="coverage", series=series)
        page.charts([Curves(title="coverage against size", views=[view])])
        page.text(" ".join(_calibration(label, runs[label].calibrated) for label in series), note=True)


def _calibration(label: str, found: ConformalRecord) -> str:
    on = {"validation": "what clients kept aside"}.get(found.calibration or "", "half of the test set")
    if found.calibration_examples is None or found.test_examples is None:
        return f"{label}: calibrated on {on}."
    many, others = found.calibration_examples, found.test_examples
    return f"{label}: calibrated on {many:,} examples ({on}), tested on {others:,}."


def _drift(page: Page, runs: dict[str, Run]) -> None:
    """A layer that did not move in a round has no drift in it. All maps have one scale."""
    known = {label: run for label, run in runs.items() if any(record.layer_drift for record in run.rounds)}
    if not known:
        return
    top = max(xi for run in known.values() for record in run.rounds for xi in record.layer_drift.values())
    maps = []
    for label, run in known.items():
        layers = list(dict.fromkeys(layer for record in run.rounds for layer in record.layer_drift))
        chosen = run.rounds[-1].svr  # With --svr auto; config.json has the S_svr of the start.
        reduced = {n.rpartition(".")[0] for n in (run.config.svr_names if chosen is None else chosen)}
        maps.append(
            HeatMap(
                title=label,
                x="round",
                rows_named=layers,
                columns=[str(record.round) for record in run.rounds],
                values=[[record.layer_drift.get(layer) for record in run.rounds] for layer in layers],
                label="xi",
                top=top,
                marked=[k for k, layer in enumerate(layers) if layer in reduced],
                mark="in S_svr: variance reduction",
            )
        )
    page.heading("Drift diversity by layer and round")
    page.charts(maps)
    page.text(
        "xi is the sum of the squared lengths of the clients' moves over the squared length of their sum: "
        "1/N if all N move alike, 1 if they are at right angles to each other, more if they undo each other.",
        note=True,
    )


def _shards(page: Page, runs: dict[str, Run]) -> None:
    """Who has which classes; runs that share it are one picture."""
    maps: dict[tuple[object, ...], tuple[list[str], Run]] = {}
    for label, run in runs.items():
        shards = tuple((seat.name, seat.classes) for seat in run.config.clients if seat.classes is not None)
        if shards:
            maps.setdefault(shards, ([], run))[0].append(label)
    if not maps:
        return
    seats = (seat.classes or () for _, run in maps.values() for seat in run.config.clients)
    top = float(max(max(counts, default=0) for counts in seats))
    page.heading("Examples by client and class")
    page.charts(
        [
            HeatMap(
                title=", ".join(labels),
                x="class",
                rows_named=[seat.name for seat in run.config.clients if seat.classes is not None],
                columns=run.config.class_names,
                values=[seat.classes for seat in run.config.clients if seat.classes is not None],
                label="examples",
                top=top,
            )
            for labels, run in maps.values()
        ]
    )
