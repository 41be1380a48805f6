"""The best x of a run, kept beside the last one.

What is best so far is in the file itself, in the metadata of best.safetensors: it is written before the
record that it was decided by, so after a kill the same decision is made again, or was made already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

from common.errors import StateError
from common.events import Emit
from common.metrics.choice import LOSS, is_better
from common.records.rounds import Evaluation
from common.tensors import safetensors_files
from common.tensors.layout import Flat
from fedserver.events.rounds import BestKept
from fedserver.run.run import Run

BEST = "best.safetensors"
_NOTE = "best"


class Best:
    """Decides by --best, if it is given."""

    def __init__(self, run: Run, emit: Emit) -> None:
        self._run = run
        self._emit = emit
        self._metric = run.config.best
        self._path = run.run_dir.path / BEST
        self._round, self._value = self._kept() if self.wanted else (0, None)

    @property
    def wanted(self) -> bool:
        """Whether a best x is kept at all."""
        return self._metric is not None

    def _kept(self) -> tuple[int, float | None]:
        """What an earlier process has found best; a file that is damaged is as none."""
        try:
            safetensors_files.require_whole(self._path)
            found = json.loads(safetensors_files.read_note(self._path)[_NOTE])
            return int(found["round"]), float(found["value"])
        except (StateError, KeyError, TypeError, ValueError):
            return 0, None

    def consider(self, r: int, metrics: Mapping[str, float | None], x: Callable[[], Flat]) -> None:
        """Keeps the x of round r if it is better than all before; of those that are alike, the first."""
        if self._metric is None:
            return
        value = metrics.get(self._metric)
        again = r == self._round and value == self._value
        if again or not is_better(self._metric, value, self._value):
            return
        assert value is not None, "nothing is not better than anything"
        note = {"run": self._run.id, "round": r, "metric": self._metric, "value": value}
        notes = self._run.run_dir.provenance(r) | {_NOTE: json.dumps(note)}
        self._run.run_dir.write_x(self._path, self._run.layout, x(), notes)
        self._round, self._value = r, value
        self._emit(BestKept(round=r, metric=self._metric, value=value))


def of_test_set(found: Evaluation) -> dict[str, float | None]:
    """The metrics of an evaluation by the server."""
    known = [share for share in found.class_accuracy if share is not None]
    return {
        "accuracy": found.accuracy,
        "balanced_accuracy": math.fsum(known) / len(known) if known else None,
        LOSS: found.loss,
    }
