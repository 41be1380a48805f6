"""Algorithms, sent and derived control variates, and codecs side by side: what they learn, send and take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.events import Emit
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import Kind, Outcome, outcome_after
from fedlab.engine.running import run_cells
from fedlab.experiments.methods import METHODS, TRAFFIC
from fedlab.reports.runs import Run


@dataclass(frozen=True)
class ComparisonRow:
    """What the table says of one method with one codec."""

    method: str
    codec: str
    outcome: str
    """finished, or how it ended instead; then nothing else is known."""
    accuracy: float | None = None
    rounds_to_target: int | None = None
    down_bytes: float | None = None
    """Per client and round, as is what follows."""
    up_bytes: float | None = None
    transfer_seconds: float | None = None
    seconds_to_target: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, and by what."""

    settings: Mapping[str, Any]
    """The same for all runs."""
    codecs: Sequence[str]
    """As for `--codec`; each is tried with every method."""
    target: float
    link: float
    """Bits per second of each client, in either direction."""

    def cells(self) -> dict[tuple[str, str], Cell]:
        """One run for every method and codec."""
        return {
            (method, codec): Cell.of({**METHODS[method], "codec": codec.split("+"), **self.settings})
            for method in TRAFFIC
            for codec in self.codecs
        }

    def rows(self, outcomes: Mapping[tuple[str, str], Outcome]) -> list[ComparisonRow]:
        """What the table shows, from the run directories alone."""
        return [
            ComparisonRow(method=method, codec=codec, outcome=outcome.mark)
            if outcome.usable is None
            else self._row(method, codec, outcome.usable)
            for (method, codec), outcome in outcomes.items()
        ]

    def _row(self, method: str, codec: str, run: Run) -> ComparisonRow:
        down = sum(record.bytes.down.total for record in run.rounds) / run.exchanges()
        up = sum(record.bytes.up.total for record in run.rounds) / run.exchanges()
        return ComparisonRow(
            method=method,
            codec=codec,
            outcome=str(Kind.FINISHED),
            accuracy=run.accuracy(),
            rounds_to_target=run.rounds_to(self.target),
            down_bytes=down,
            up_bytes=up,
            transfer_seconds=8 * (down + up) / self.link,
            seconds_to_target=run.seconds_to(self.target, self.link),
        )


def compare(comparison: Comparison, folder: Path, engine: EngineChoice, emit: Emit) -> list[ComparisonRow]:
    """Runs what has not been run yet, and returns a row for each method and codec."""
    cells, folder = comparison.cells(), engine.runs_in(folder)
    run_cells(list(cells.values()), folder, engine, emit)
    return comparison.rows({key: outcome_after(cell, folder) for key, cell in cells.items()})
