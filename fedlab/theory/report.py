"""A study as tables and one page with curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from common.page.charts import Curves, View
from common.page.page import Page
from fedlab.experiments.bench import Output
from fedlab.reports.tables import Table
from fedlab.theory.floors import Floor, Noise
from fedlab.theory.order import Fraction, Order
from fedlab.theory.problem import SHARES
from fedlab.theory.proof import Claim
from fedlab.theory.study import Findings
from fedlab.theory.sweep import SHOWN, BoundedRun, ProblemRuns

LEAD = (
    "Errors of FedPVR on problems whose optimum is known, beside the theorem's bound with measured "
    "constants. p is the share of coordinates in S_svr: 0 is FedAvg, 1 is SCAFFOLD. t is K eta_l eta_g beta; "
    "the theorem speaks of t up to 1/80, larger steps have no bound."
)
ROUNDING = 1e-18
"""Errors below it are shown as 0 and are no point of a curve."""


def write(found: Findings, folder: Path, command: str) -> Output:
    """Writes theory.html, tables, a picture and study.json."""
    folder.mkdir(parents=True, exist_ok=True)
    page = Page("The theorem, checked", LEAD)
    page.text(f"Made by `{command}`.")
    out = Output(folder, page)
    out.table("constants", "Measured constants", _constants(found.sweeps))
    for number, sweep in enumerate(found.sweeps):
        _add_sweep(out, sweep, f"sweep-{number}")
    if found.orders:
        out.table("order", "Is FedPVR between SCAFFOLD and FedAvg?", _orders(found.orders))
    if found.floors:
        out.table("floors", "Where a constant step rests, exact gradients, t = 1/80", _floors(found.floors))
        out.pictures("floors", [_floor_curves(found.floors)])
    if found.noises:
        out.table("noise", "Noise alone at rest, t = 1/80", _noises(found.noises))
    out.table("proof", "Where the printed proofs need other constants", _claims(found.claims))
    (folder / "study.json").write_text(document(found))
    page.write(folder / "theory.html")
    return out


def document(found: Findings) -> str:
    """All numbers as JSON."""
    return json.dumps(asdict(found), indent=1) + "\n"


def _add_sweep(out: Output, sweep: ProblemRuns, name: str) -> None:
    title = f"{sweep.problem}, {'stochastic' if sweep.cells[0].stochastic else 'exact'} gradients"
    rounds = len(sweep.curves[0].errors) - 1
    out.table(name, f"{title}: f(x) - f* after {rounds} rounds, by p", _errors(sweep))
    if sweep.constants.mu:
        out.table(f"{name}-distance", f"{title}: squared distance to x*, by p", _distances(sweep))
    # On the page only: files of so many curves would take as long as all that they show.
    out.page.charts([_error_curves(sweep, t, title) for t in dict.fromkeys(c.t for c in sweep.curves)])


def _constants(sweeps: Sequence[ProblemRuns]) -> Table:
    headings = [
        "problem",
        "N",
        "beta",
        "mu",
        "D",
        "F",
        "zeta^2",
        "sigma^2",
        *(f"zeta^2 p={p:g}" for p in SHARES),
    ]
    rows = []
    for sweep in sweeps:
        c = sweep.constants
        figures = [_short(v) for v in (c.beta, c.mu, c.distance, c.gap, c.zeta2, c.sigma2)]
        outside = [_short(cell.zeta2_outside) for cell in sweep.cells[: len(SHARES)]]
        rows.append([sweep.problem, str(c.num_clients), *figures, *outside])
    return Table(headings, rows)


def _settings(sweep: ProblemRuns) -> list[list[BoundedRun]]:
    """Cells of one t, K and eta_g together, by p."""
    return [sweep.cells[k : k + len(SHARES)] for k in range(0, len(sweep.cells), len(SHARES))]


def _named(cell: BoundedRun) -> list[str]:
    return [f"1/{1 / cell.t:.0f}", str(cell.local_steps), f"{cell.eta_g:.3g}"]


def _errors(sweep: ProblemRuns) -> Table:
    means = ["mean, p=0", "bound, p=0", "mean, p=1", "bound, p=1"]
    rows = [
        [
            *_named(lanes[0]),
            *(_short(cell.error) for cell in lanes),
            *(_short(v) for c in (lanes[0], lanes[-1]) for v in (c.mean_error, c.error_bound)),
        ]
        for lanes in _settings(sweep)
    ]
    return Table(["t", "K", "eta_g", *(f"p={p:g}" for p in SHARES), *means], rows)


def _distances(sweep: ProblemRuns) -> Table:
    bounds = ["bound, p=0", "bound, p=1", "sharper, p=0", "sharper, p=1"]
    rows = [
        [
            *_named(lanes[0]),
            *(_short(cell.distance) for cell in lanes),
            *(_short(lanes[k].distance_bound) for k in (0, -1)),
            *(_short(lanes[k].distance_sharper) for k in (0, -1)),
        ]
        for lanes in _settings(sweep)
    ]
    return Table(["t", "K", "eta_g", *(f"p={p:g}" for p in SHARES), *bounds], rows)


def _orders(orders: Sequence[Order]) -> Table:
    headings = [
        "problem",
        "clients differ",
        "when",
        "zeta^2 ratio",
        "predicted",
        "FedPVR < FedAvg",
        "SCAFFOLD <= FedPVR",
        "both",
        "FedPVR / FedAvg",
    ]
    rows = [
        [
            o.problem,
            o.place,
            o.when,
            _short(o.zeta_ratio),
            o.predicted,
            *map(_fraction, (o.fedpvr_before_fedavg, o.scaffold_before_fedpvr, o.between)),
            _short(o.ratio),
        ]
        for o in orders
    ]
    return Table(headings, rows)


def _floors(floors: Sequence[Floor]) -> Table:
    headings = ["p", "zeta^2 outside", "squared distance", "over zeta^2", "bound", "sharper", "grows as eta^"]
    rows = [
        [
            f"{f.share:g}",
            *map(_short, (f.zeta2_outside, f.distance)),
            _short(f.distance / f.zeta2_outside if f.zeta2_outside else None),
            *map(_short, (f.bound, f.sharper)),
            "-" if f.power is None else f"{f.power:.2f}",
        ]
        for f in floors
    ]
    return Table(headings, rows)


def _noises(noises: Sequence[Noise]) -> Table:
    rows = [
        [
            str(n.num_clients),
            str(n.local_steps),
            f"{n.eta_g:g}",
            f"{n.share:g}",
            _short(n.distance),
            _short(n.times),
        ]
        for n in noises
    ]
    return Table(["N", "K", "eta_g", "p", "squared distance", "times N K"], rows)


def _claims(claims: Sequence[Claim]) -> Table:
    return Table(
        ["where", "printed", "computed", "remedy"], [list(asdict(claim).values()) for claim in claims]
    )


def _error_curves(sweep: ProblemRuns, t: float, title: str) -> Curves:
    series = {
        f"p = {c.share:g}": (
            list(map(float, range(len(c.errors)))),
            [error if error > ROUNDING else None for error in c.errors],
        )
        for c in sweep.curves
        if c.t == t
    }
    view = View(name="", x="round", y="f(x) - f*", series=series, log=True)
    return Curves(title=f"{title}, t = 1/{1 / t:.0f}, K = {SHOWN}, eta_g = 1", views=[view])


def _floor_curves(floors: Sequence[Floor]) -> Curves:
    known = [f for f in reversed(floors) if f.zeta2_outside]
    at = [f.zeta2_outside for f in known]
    series = {
        "measured": (at, [f.distance for f in known]),
        "bound": (at, [f.bound for f in known]),
        "sharper": (at, [f.sharper for f in known]),
    }
    view = View(name="", x="zeta^2 outside S_svr", y="squared distance at rest", series=series, log=True)
    return Curves(title="exact gradients, constant step", views=[view])


def _fraction(fraction: Fraction) -> str:
    low, high = fraction.interval
    return f"{fraction.held}/{fraction.of} [{low:.2f}, {high:.2f}]"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return "0" if abs(value) < ROUNDING else f"{value:.3g}"
