"""The centralised baseline: the paper's grid, once for each data set and model, chosen by validation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedlab.engine.outcome import Outcome, usable
from fedlab.paper.columns import Column
from fedlab.paper.items.parts import entry
from fedlab.paper.study import Study, Wanted
from fedlab.reports.runs import Run
from fedlab.reports.tables import Table


@dataclass(frozen=True)
class Baseline:
    """The best of the grid."""

    eta_l: float
    momentum: float
    outcomes: Sequence[Outcome]

    @property
    def entry(self) -> str:
        """Its accuracy on the test set, in per cent."""
        return entry(self.outcomes, lambda run: 100 * run.accuracy())

    @property
    def accuracy(self) -> float | None:
        """The mean over seeds, as a share."""
        found = [run.accuracy() for run in usable(self.outcomes)]
        return statistics.fmean(found) if found else None


def _grid(study: Study, column: Column) -> dict[tuple[float, float], list[Wanted]]:
    return {
        (eta, momentum): [study.centralised(column, eta, momentum, seed) for seed in range(study.seeds)]
        for eta, momentum in study.scale.central.grid
    }


def runs(study: Study, columns: Sequence[Column]) -> list[Wanted]:
    """The grid of every data set and model; columns that differ in alpha share it."""
    found = [each for column in columns for wanted in _grid(study, column).values() for each in wanted]
    return list(dict.fromkeys(found))


def chosen(study: Study, column: Column) -> Baseline:
    """What does best on the share for validation, by the mean over seeds; the test set has no say."""
    found = [
        Baseline(eta, momentum, study.outcomes(wanted))
        for (eta, momentum), wanted in _grid(study, column).items()
    ]
    return max(found, key=lambda each: _validation(each.outcomes))


def _validation(outcomes: Sequence[Outcome]) -> float:
    """Mean over seeds of the accuracy on the share for validation; -1 if a seed has none.

    It is that of the model with which the last round begins: clients say it before they train.
    """
    found = [_last_validation(run) for run in usable(outcomes)]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known and len(known) == len(outcomes) else -1.0


def _last_validation(run: Run) -> float | None:
    return run.rounds[-1].validation_accuracy


def table(study: Study, columns: Sequence[Column]) -> Table:
    """All of the grid, with which was chosen."""
    rows, done = [], set()
    for column in columns:
        if (column.dataset, column.model) in done:
            continue
        done.add((column.dataset, column.model))
        best = chosen(study, column)
        for (eta, momentum), wanted in _grid(study, column).items():
            outcomes = study.outcomes(wanted)
            validation = _validation(outcomes)
            rows.append(
                [
                    column.short,
                    f"{eta:g}",
                    f"{momentum:g}",
                    f"{validation:.3f}" if validation >= 0 else "-",
                    entry(outcomes, lambda run: 100 * run.accuracy()),
                    "chosen" if (eta, momentum) == (best.eta_l, best.momentum) else "",
                ]
            )
    headings = ["data set and model", "eta_l", "momentum", "validation accuracy", "top-1 in per cent", ""]
    return Table(headings, rows)


def text(study: Study) -> str:
    """How it was trained."""
    central = study.scale.central
    return (
        f"One client has everything: {central.epochs} epochs with a constant step size, evaluated every "
        f"{central.local_epochs}. Momentum starts at zero after each evaluation, as it does in every round "
        f"of a federation. {central.validation:.0%} of the data are kept for the choice, which goes by the "
        f"model {central.local_epochs} epochs before the end. There is one grid for each data set and model, "
        "because alpha plays no part."
    )
