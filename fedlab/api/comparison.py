"""Several runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedlab.api.rounds import Rounds
from fedlab.api.table import Table

if TYPE_CHECKING:
    from fedlab.api.picture import Picture


class Compared(Protocol):
    """What a comparison needs of a run."""

    rounds: Rounds

    @property
    def path(self) -> Path: ...
    @property
    def method(self) -> str: ...
    @property
    def bytes_per_client_and_round(self) -> dict[str, float]: ...


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One run. Bytes are those of one client in one round, both directions."""

    run: str
    rounds: int
    accuracy: float | None
    """After the last evaluated round."""
    best: float | None
    """Of all evaluated rounds."""
    model: float
    control: float
    other: float
    total: float
    ratio: float
    """Of the total to that of the first run."""


class Comparison(Table[ComparisonRow]):
    """Runs by name, the first one being what the others are compared with."""

    def __init__(self, runs: Mapping[str, Compared]) -> None:
        self._runs = runs
        totals: list[float] = []
        rows = []
        for name, run in runs.items():
            sent = run.bytes_per_client_and_round
            totals.append(sum(sent.values()))
            evaluated = [value for value in run.rounds.column("accuracy") if value is not None]
            model, control = sent.get("model", 0.0), sent.get("control", 0.0)
            rows.append(
                ComparisonRow(
                    run=name,
                    rounds=len(run.rounds),
                    accuracy=evaluated[-1] if evaluated else None,
                    best=max(evaluated, default=None),
                    model=model,
                    control=control,
                    other=totals[-1] - model - control,
                    total=totals[-1],
                    ratio=totals[-1] / totals[0],
                )
            )
        super().__init__(ComparisonRow, rows)

    def plot(self) -> Picture:
        """The curves of all of them."""
        from fedlab.api.picture import curves

        return curves({name: run.rounds for name, run in self._runs.items()})


def named(*runs: Compared) -> dict[str, Compared]:
    """Runs by their method, and by their folder too where that is the same."""
    methods = [run.method for run in runs]
    names = [m if methods.count(m) == 1 else f"{m} {r.path.name}" for m, r in zip(methods, runs, strict=True)]
    return {
        name if names.count(name) == 1 else f"{name} {k + 1}": run
        for k, (name, run) in enumerate(zip(names, runs, strict=True))
    }
