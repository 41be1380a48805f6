"""A report on any runs: how they learned, what they sent, where clients drifted apart."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from common.bit_rate import bits_per_second
from fedlab.reports import plots
from fedlab.reports.page import Page
from fedlab.reports.runs import Run, read_run
from fedlab.reports.sites import write_sites
from fedlab.reports.tables import Table

MAX_LABEL = 32


def write_report(run_dirs: list[Path], out: Path, link: str) -> Table:
    """Writes one self-contained page about these runs, and returns the table that opens it."""
    found = [read_run(path) for path in run_dirs]
    runs = dict(zip(_labels(run_dirs, found), found, strict=True))
    page = Page("Runs: " + ", ".join(runs))
    page.heading("Summary")
    summary = _summary(runs)
    page.table(summary)
    _learning(page, runs, link)
    page.heading("Bytes per client and round, by purpose")
    parts = {label: run.bytes_per_client_and_round() for label, run in runs.items()}
    page.pictures([plots.stacked_bars("down and up together", "bytes", parts)])
    _ledgers(page, runs)
    _conformal(page, runs)
    for label, run in runs.items():
        write_sites(page, label, run)
    for label, run in runs.items():
        page.heading(f"{label}: drift diversity and shards")
        page.pictures([figure for figure in (_drift(run), _shards(run)) if figure is not None])
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


def _learning(page: Page, runs: dict[str, Run], link: str) -> None:
    page.heading("Accuracy over rounds, over bytes, and over time")
    by_round = {label: run.accuracy_over("round") for label, run in runs.items()}
    by_bytes = {label: run.accuracy_over("megabytes") for label, run in runs.items()}
    speed = bits_per_second("--link", link)
    by_time = {label: run.accuracy_over("seconds", speed) for label, run in runs.items()}
    y = "accuracy in per cent"
    page.pictures(
        [
            plots.curves("over rounds", "round", y, by_round, percent=True),
            plots.curves("over traffic of one client", "MB down and up", y, by_bytes, percent=True),
            plots.curves(f"over time on a link of {link}", "seconds", y, by_time, percent=True),
        ]
    )
    page.text(
        "Time is the slowest client's training in each round plus what the bytes of a client take on a link "
        f"of {link}, down and up one after the other."
    )
    _times(page, runs, speed, link)


def _times(page: Page, runs: dict[str, Run], speed: float, link: str) -> None:
    """Time to a few accuracies, up to what the worst run has reached."""
    worst = min(max(run.accuracy_over("round")[1]) for run in runs.values())
    targets = [worst * share for share in (0.7, 0.85, 1.0)]
    rows = []
    for label, run in runs.items():
        times = (run.seconds_to(target, speed) for target in targets)
        rows.append([label, *("-" if seconds is None else f"{seconds:,.1f} s" for seconds in times)])
    page.heading(f"Time to an accuracy on a link of {link}")
    page.table(Table(["run", *(f"{target:.1%}" for target in targets)], rows))


def _ledgers(page: Page, runs: dict[str, Run]) -> None:
    """What every client and every tensor took, over all rounds."""
    for label, run in runs.items():
        clients = [
            [client or "(no seat)", direction, f"{payload:,}", f"{encoded:,}"]
            for client, directions in run.by_client().items()
            for direction, (payload, encoded) in directions.items()
        ]
        tensors = [
            [tensor, purpose, direction, f"{payload:,}", f"{encoded:,}"]
            for (direction, purpose, tensor), (payload, encoded) in run.by_tensor().items()
        ]
        page.heading(f"{label}: bytes by client and by tensor, all rounds")
        page.table(Table(["client", "direction", "payload", "encoded"], clients))
        page.table(Table(["tensor or message", "purpose", "direction", "payload", "encoded"], tensors))


def _conformal(page: Page, runs: dict[str, Run]) -> None:
    series = {
        label: ([s.mean_size for s in run.conformal], [s.coverage for s in run.conformal])
        for label, run in runs.items()
        if run.conformal
    }
    if series:
        page.heading("Conformal prediction sets of the final model")
        page.pictures([plots.curves("coverage against size", "mean set size", "coverage", series)])


def _drift(run: Run) -> Figure | None:
    # A layer that did not move in a round has no drift in it.
    layers = list(dict.fromkeys(layer for record in run.rounds for layer in record.layer_drift))
    if not layers:
        return None
    drifts = {record.round: record.layer_drift for record in run.rounds}
    rounds = range(1, max(drifts) + 1)
    values = [[drifts.get(r, {}).get(layer, 0.0) for r in rounds] for layer in layers]
    return plots.heat_map("drift diversity by layer", "round", layers, values, "xi", first=1)


def _shards(run: Run) -> Figure | None:
    shards = {seat.name: seat.classes for seat in run.config.clients if seat.classes is not None}
    if not shards:
        return None
    return plots.heat_map("examples by class", "class", list(shards), list(shards.values()), "examples")
