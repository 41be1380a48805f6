"""conformal.json: prediction sets of the final model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import json_files
from common.records.base import Count, Record

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
    calibration: str | None = None
    """What tau was chosen on: `validation`, the examples that clients with a shard of the server's data keep
    aside, or `test-half`, half of the test set, as it is where nothing is kept aside. Earlier releases, which
    do not say, took half of the test set."""
    calibration_examples: Count | None = None
    """How many these were."""
    test_examples: Count | None = None
    """How many others coverage and size are of."""

    @classmethod
    def from_first(cls, value: Any) -> Any:
        """It was the list alone."""
        return {"sets": value}


def read_conformal(run_dir: Path) -> ConformalRecord:
    """The prediction sets of a run; empty for one that is not finished."""
    path = run_dir / CONFORMAL
    return json_files.read(path, ConformalRecord) if path.exists() else ConformalRecord(sets=())
