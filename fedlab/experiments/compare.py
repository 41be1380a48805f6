"""Algorithms, sent and derived control variates, and codecs side by side: what they learn, send and take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.events import Emit
from fedlab.engine.cells import Cell
from fedlab.engine.choice import EngineChoice
from fedlab.engine.outcome import finished_run
from fedlab.engine.running import run_cells
from fedlab.experiments.methods import METHODS, TRAFFIC
from fedlab.reports.runs import Run


@dataclass(frozen=True)
class ComparisonRow:
    """What the table says of one method with one codec."""

    method: str
    codec: str
    accuracy: float
    rounds_to_target: int | None
    down_bytes: float
    """Per client and round, as is what follows."""
    up_bytes: float
    transfer_seconds: float
    seconds_to_target: float | None


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

    def rows(self, runs: Mapping[tuple[str, str], Run]) -> list[ComparisonRow]:
        """What the table shows, from the run directories alone."""
        return [self._row(method, codec, run) for (method, codec), run in runs.items()]

    def _row(self, method: str, codec: str, run: Run) -> ComparisonRow:
        down = sum(record.bytes.down.total for record in run.rounds) / run.exchanges()
        up = sum(record.bytes.up.total for record in run.rounds) / run.exchanges()
        return ComparisonRow(
            method=method,
            codec=codec,
            accuracy=run.accuracy(),
            rounds_to_target=run.rounds_to(self.target),
            down_bytes=down,
            up_bytes=up,
            transfer_seconds=8 * (down + up) / self.link,
            seconds_to_target=run.seconds_to(self.target, self.link),
        )


def compare(comparison: Comparison, folder: Path, engine: EngineChoice, emit: Emit) -> list[ComparisonRow]:
    """Runs what has not been run yet, and returns a row for each method and codec."""
    cells = comparison.cells()
    run_cells(list(cells.values()), folder, engine, emit)
    return comparison.rows({key: finished_run(cell, folder) for key, cell in cells.items()})
