"""conformal.json: prediction sets of the final model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import json_files
from common.records.base import Record

CONFORMAL = "conformal.json"


@dataclass(frozen=True, kw_only=True)
class PredictionSets:
    """What prediction sets at one kappa are like on data that were not used to choose tau."""

    kappa: float
    """Share of examples whose class may be missing in its set."""
    tau: float | None
    """Probability from which on a class is in the set; null where the model gives none."""
    coverage: float
    """Share of examples whose class is in its set; should be at least 1 - kappa."""
    mean_size: float
    """Mean number of classes in a set."""


@dataclass(frozen=True, kw_only=True)
class ConformalRecord(Record):
    """conformal.json: conformal prediction sets of the final x. It comes last: a run that has it is whole."""

    sets: tuple[PredictionSets, ...]
    """One for each kappa. In format 1 the document was this list."""

    @classmethod
    def from_first(cls, value: Any) -> Any:
        """It was the list alone."""
        return {"sets": value}


def read_conformal(run_dir: Path) -> tuple[PredictionSets, ...]:
    """The prediction sets of a run; empty for one that is not finished."""
    path = run_dir / CONFORMAL
    return json_files.read(path, ConformalRecord).sets if path.exists() else ()
