"""Trackers by kind, and how each gets every value of a run once, whatever was killed meanwhile.

What a tracker already has is read back from it when it is opened. So there is no second account of what was
written that could disagree with the first.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from common.errors import ConfigError
from common.records.rounds import RoundRecord
from common.records.run import RunRecord
from fedserver.track.scalars import scalars

SILENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "GIT_PYTHON_REFRESH": "quiet"}
"""Nothing is told to MLflow's makers, and nobody looks for git, unless the user wants that."""
SINGLE = 1e-6
"""TensorBoard keeps 32-bit floats; values that agree to this are the same."""


@dataclass(frozen=True)
class Point:
    """A value of a curve."""

    name: str
    round: int
    value: float
    time: float
    """When it was told, in seconds since 1970."""


Known = dict[tuple[str, int], float]
"""Values by name and round."""


class Tracker(Protocol):
    """Where the curves of one run go."""

    def known(self) -> Known:
        """What it has of this run."""

    def go_back(self, r: int) -> None:
        """What it has of round r and later ones does not hold: the run went back to an older checkpoint."""

    def write(self, points: Iterable[Point]) -> None:
        """Adds values, on disk or with the server when it returns."""

    def close(self, *, finished: bool) -> None:
        """No more comes from this process; `finished` says whether the run is over."""


@dataclass(frozen=True)
class Kind:
    """A kind of tracker."""

    module: str
    """Has `open_tracker`, and needs the library."""
    library: str
    extra: str


KINDS = {
    "tensorboard": Kind("fedserver.track.tensorboard_files", "tensorboardX", "tensorboard"),
    "mlflow": Kind("fedserver.track.mlflow_store", "mlflow", "mlflow"),
}


@dataclass(frozen=True)
class Target:
    """A tracker as it is asked for: `tensorboard=DIR` or `mlflow=URI`."""

    kind: str
    where: str

    def __str__(self) -> str:
        return f"{self.kind}={self.where}"

    def open(self, run_dir: Path, run: RunRecord) -> Tracker:
        """The tracker, with what identifies the run."""
        kind = KINDS[self.kind]
        os.environ.update(SILENT | os.environ)
        _import_without_torch(kind.library)
        create: Callable[[str, Path, RunRecord], Tracker] = importlib.import_module(kind.module).open_tracker
        return create(self.where, run_dir, run)


def _import_without_torch(library: str) -> None:
    """tensorboardX imports torch where there is one: seconds, and hundreds of megabytes, for no use here."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        importlib.import_module(library)
    finally:
        if hidden:
            del sys.modules["torch"]


def target(flag: str, text: str) -> Target:
    """What a flag asks for; raises unless there is such a tracker and its library."""
    name, _, where = text.partition("=")
    if name not in KINDS or not where:
        raise ConfigError(f"{flag} must be tensorboard=DIR or mlflow=URI, got {text!r}")
    kind = KINDS[name]
    if find_spec(kind.library) is None:
        raise ConfigError(
            f"{flag} {name} needs {kind.library}, which is not here; install it with: "
            f'pip install "fedpvr[{kind.extra}]"'
        )
    return Target(name, where)


class Once:
    """Tells a tracker what it does not have yet."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._known = tracker.known()

    def tell(self, records: Iterable[RoundRecord], times: dict[int, float]) -> int:
        """All that is new in these records; returns how many values that were."""
        found = {(name, record.round): value for record in records for name, value in scalars(record).items()}
        changed = [r for (name, r), value in found.items() if not self._agrees(name, r, value)]
        if changed:
            first = min(changed)
            self._tracker.go_back(first)
            self._known = {key: value for key, value in self._known.items() if key[1] < first}
        now = time.time()
        points = [
            Point(name, r, value, times.get(r, now))
            for (name, r), value in found.items()
            if (name, r) not in self._known
        ]
        if points:
            self._tracker.write(points)
        self._known |= {(point.name, point.round): point.value for point in points}
        return len(points)

    def _agrees(self, name: str, r: int, value: float) -> bool:
        before = self._known.get((name, r), value)
        return math.isclose(before, value, rel_tol=SINGLE, abs_tol=SINGLE)
