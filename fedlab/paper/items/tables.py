"""Tables 2 and 3: rounds to a target, accuracy after 80 rounds, and copies that are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedlab.engine.outcome import Kind, Outcome
from fedlab.experiments.bench import Output
from fedlab.experiments.methods import DERIVED, METHODS, TRAINED
from fedlab.paper import published
from fedlab.paper.columns import Column
from fedlab.paper.items import central
from fedlab.paper.items.parts import accuracy_at, copies, entry, learning_curves
from fedlab.paper.study import Study, Wanted
from fedlab.reports.paired import Bound, Reached, mean_speed_up
from fedlab.reports.tables import Table
from fedserver import presets

Grid = Mapping[str, Mapping[str, Sequence[Outcome]]]
"""Outcomes of all seeds, by column and method."""
DERIVED_TEXT = (
    "Derived methods have no runs here: they train as the method does whose control variates are sent, "
    "to the bit, and differ in what they send alone."
)


def trained(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """Every method on every column with every seed."""
    return [each for column in columns for method in TRAINED for each in study.every_seed(column, method)]


def table2(study: Study, columns: Sequence[Column], out: Output) -> None:
    """Rounds to a target accuracy, and the speed-up over FedAvg."""
    grid = {
        column.name: {method: study.outcomes(study.every_seed(column, method)) for method in TRAINED}
        for column in columns
    }
    headings = [
        "algorithm",
        *(f"{study.heading(c)} to {study.scale.stand_in(c).target:.0%}" for c in columns),
    ]
    rows = [[method, *(_rounds(study, column, grid, method) for column in columns)] for method in METHODS]
    title = f"Rounds to the target within {study.scale.rounds}, one number per seed, and mean speed-up"
    out.table("table2", title, Table(headings, rows))
    out.page.text(
        "Speed-ups are over FedAvg with the same seed, their mean is the geometric one. A target that "
        "was not reached enters as a bound: >1.8x where FedAvg needs more rounds than were run, <0.6x "
        "where the method does."
    )
    out.page.text(DERIVED_TEXT)
    printed = [[method, *(_published_rounds(column, method) for column in columns)] for method in TRAINED]
    out.published(
        "The paper's table 2: rounds to 66 % (CIFAR-10) or 44 % (CIFAR-100) within 100",
        Table(_paper(columns), printed),
    )
    out.table("settings", "Settings in which methods differ", settings(study, columns))
    out.page.heading("Learning curves over all seeds")
    out.pictures("curves", [learning_curves(study.heading(column), grid[column.name]) for column in columns])


def _rounds(study: Study, column: Column, grid: Grid, method: str) -> str:
    """Rounds of each seed, and the mean speed-up."""
    of, base = grid[column.name][DERIVED.get(method, method)], grid[column.name]["fedavg"]
    target, at_most = study.scale.stand_in(column).target, study.scale.rounds
    gained = speed_up(of, base, target, at_most)
    words = [_reached(each, target, at_most) for each in of]
    shown = [
        each.mark if found is None or each.mark else found.text()
        for each, found in zip(of, words, strict=True)
    ]
    return f"{' / '.join(shown)} ({'-' if gained is None else gained.text('.2f', 'x')})"


def speed_up(of: Sequence[Outcome], base: Sequence[Outcome], target: float, at_most: int) -> Bound | None:
    """The mean over seeds; None where it has no bound. FedAvg's own is 1, whether it gets there or not."""
    if of is base:
        return Bound(1.0)
    found = [{k: _reached(each, target, at_most) for k, each in enumerate(some)} for some in (of, base)]
    ours, fedavg = ({k: each for k, each in some.items() if each is not None} for some in found)
    return mean_speed_up(ours, fedavg) if len(ours) == len(of) and len(fedavg) == len(base) else None


def _reached(outcome: Outcome, target: float, at_most: int) -> Reached | None:
    """When a run reached its target. One that diverged never does; one that failed says nothing."""
    if outcome.kind is Kind.FAILED:
        return None
    rounds = None if outcome.run is None else outcome.run.rounds_to(target)
    return Reached(at_most, censored=True) if rounds is None else Reached(rounds)


def _paper(columns: Sequence[Column]) -> list[str]:
    return ["algorithm", *(column.heading for column in columns)]


def _published_rounds(column: Column, method: str) -> str:
    key = (column.name, method)
    return f"{published.ROUNDS[key]} ({published.SPEED_UP[key]})" if key in published.ROUNDS else "-"


def table3_runs(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """As for table 2, the baseline, and what derived methods send."""
    scored = [each for column in columns for method in TRAINED for each in study.scored(column, method)]
    return [*scored, *central.runs(study, columns), *_traffic(study, columns).values()]


def _traffic(study: Study, columns: Sequence[Column]) -> dict[tuple[str, str], Wanted]:
    return {(column.name, m): study.traffic_of(column, m) for column in columns for m in DERIVED}


def table3(study: Study, columns: Sequence[Column], out: Output) -> None:
    """Top-1 accuracy after so many rounds, with what it cost to send."""
    at, baselines = study.scale.at_round, {c.name: central.chosen(study, c) for c in columns}
    grid = {c.name: {method: study.outcomes(study.scored(c, method)) for method in TRAINED} for c in columns}
    rows = [["centralised", *(baselines[column.name].entry for column in columns)]]
    for method in METHODS:
        found = [grid[column.name][DERIVED.get(method, method)] for column in columns]
        rows.append([method, *(entry(each, lambda run: _per_cent(accuracy_at(run, at))) for each in found)])
    headings = ["algorithm", *(study.heading(column) for column in columns)]
    seeds = f"{study.seeds} seed{'s' if study.seeds > 1 else ''}"
    out.table("table3", f"Top-1 accuracy after round {at}, in per cent, {seeds}", Table(headings, rows))
    out.page.text(DERIVED_TEXT)
    printed = [
        [method, *(published.TOP_1.get((c.name, method), "-") for c in columns)]
        for method in ("centralised", *TRAINED)
    ]
    out.published("The paper's table 3: top-1 accuracy after 80 rounds", Table(_paper(columns), printed))
    _copies(study, columns, grid, out)
    out.table("centralised", "The centralised grid, chosen by validation", central.table(study, columns))
    out.page.text(central.text(study))
    out.table("settings", "Settings in which methods differ", settings(study, columns))
    out.page.heading("Learning curves over all seeds")
    out.pictures("curves", [learning_curves(study.heading(column), grid[column.name]) for column in columns])


def _per_cent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _copies(study: Study, columns: Sequence[Column], grid: Grid, out: Output) -> None:
    """Copies of the model per client and round, for every column, beside the paper's."""
    headings = ["algorithm", *(study.heading(column) for column in columns)]
    rows = [[m, *(copies_of(study, column, grid, m) for column in columns)] for m in METHODS]
    out.table("copies", "Copies of the model sent per client and round, measured", Table(headings, rows))
    printed = [[m, *(published.COPIES.get((c.name, m), "-") for c in columns)] for m in TRAINED]
    out.published("The paper's table 3: copies sent", Table(_paper(columns), printed))
    out.page.text(
        "By count of parameters the paper's 2.02x holds for ResNet-8 with 10 classes; with 100 it is 2.155x. "
        "`fedlab model resnet8 --num-classes 100` counts them."
    )


def copies_of(study: Study, column: Column, grid: Grid, method: str) -> str:
    """What a method sends on a column, as an entry of a table."""
    if method in DERIVED:
        found = study.outcome(study.traffic_of(column, method))
    else:
        found = grid[column.name][method][0]
    return found.shown(lambda run: f"{copies(run):.4f}x")


def settings(study: Study, columns: Sequence[Column]) -> Table:
    """Step size, schedule, momentum and so on of every method on every column."""
    rows = [
        [column.name, method, *study.described(column, method).values()]
        for column in columns
        for method in TRAINED
    ]
    return Table(["column", "algorithm", "eta_l", "schedule", "momentum", "mu or alpha"], rows)


def step_sizes(study: Study, columns: Sequence[Column], out: Output) -> None:
    """Tables C.1 and C.2, and what the paper says elsewhere or not at all."""
    out.table("settings", "Step sizes, schedules and momentum", settings(study, columns))
    out.published("In the paper", Table(["column", "algorithm", "eta_l", "schedule"], _printed(columns)))
    out.page.text(
        "The paper prints eta_l and schedule of FedAvg, SCAFFOLD and FedPVR. FedProx and FedDyn take "
        "FedAvg's here. Momentum acts outside S_svr; that FedPVR alone has it follows the released "
        "scripts."
    )


def _printed(columns: Sequence[Column]) -> list[list[str]]:
    rows = []
    for column in columns:
        for method in ("fedavg", "scaffold", "fedpvr"):
            found = presets.settings(column.name, method)
            rows.append([column.name, method, str(found["eta_l"]), str(found["schedule"])])
    return rows
