"""The updates of one round on their way into the next x and c."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.server_step.robust import move_norms
from common.tensors.layout import Flat, Purpose
from fedserver.run.federation import Federation
from fedserver.run.round import Answer, OpenRound


class Fold:
    """Takes updates in, in the order of client indices, as soon as they are there if that is possible."""

    def __init__(self, federation: Federation, current: OpenRound) -> None:
        self._federation = federation
        self._current = current
        self._robustness = federation.config.robustness
        self._norms: dict[int, dict[Purpose, float]] = {}
        self.aggregate = self._robustness.aggregate(federation.layout, current.seen)
        self.counted: dict[int, Answer] = {}
        """Whose updates count."""
        self.left_out: dict[str, float] = {}
        """Whose do not, because they are too large: by name, in medians."""
        self.consistent = True
        """Whether every c_i follows from its y_i."""

    def take(self, i: int, answer: Answer) -> None:
        """Takes in an update; with a bound on norms it is only measured until all are there."""
        self.counted[i] = answer
        if self._robustness.norm_bound is None:
            self._add(i, answer)
        else:
            self._norms[i] = move_norms(self._federation.layout, self._current.seen, *self._values(i, answer))

    def finish(self) -> None:
        """Leaves out what is too large, now that all updates are there, and takes in the others."""
        for i, times in self._robustness.outliers(self._norms).items():
            name = self.counted.pop(i).name
            self.left_out[name] = times
            self._federation.say(
                f"round {self._current.number}: leaves out {name}: its update is {times:.3g} times "
                f"the median, the bound is {self._robustness.norm_bound:g}"
            )
        for i in sorted(self._norms.keys() & self.counted.keys()):
            self._add(i, self.counted[i])

    def step_sums(self) -> list[float]:
        """Sums of the step sizes of those who count."""
        return [self._step_sum(answer) for answer in self.counted.values()]

    def record(self) -> dict[str, Any]:
        """What rounds.jsonl says of the updates."""
        answers = self.counted.values()
        return {
            "updates": len(answers),
            **({"left_out": self.left_out} if self._robustness.norm_bound is not None else {}),
            "train_loss": sum(answer.loss / len(answers) for answer in answers),
            "validation_accuracy": _mean(answer.validation_accuracy for answer in answers),
            "drift": self.aggregate.drift_diversity(),
            "layer_drift": self.aggregate.drift_diversity(by_layer=True),
        }

    def model_files(self) -> list[Path]:
        """Files that open with the tensors of y_i."""
        return [self._model_file(i, answer) for i, answer in self.counted.items()]

    def _model_file(self, i: int, answer: Answer) -> Path:
        spool, r = self._federation.spool, self._current.number
        if self._federation.update_reader.encoding.plain:
            return spool.path(r, i)
        if not spool.values_path(r, i).exists():
            spool.write_values(r, i, self._values(i, answer)[0])
        return spool.values_path(r, i)

    def _add(self, i: int, answer: Answer) -> None:
        federation, r, seen = self._federation, self._current.number, self._current.seen
        values, c_i = self._values(i, answer)
        if self._robustness.aggregation != "mean":
            # Held until all are there, so in a file and not in memory.
            values = federation.spool.write_values(r, i, values)
            c_i = None if c_i is None else federation.spool.write_values(r, i, c_i, ".before")
        self.consistent &= federation.update_reader.follows(values, seen, c_i, self._step_sum(answer))
        weight = float(answer.examples) if federation.config.weighting == "examples" else 1.0
        self.aggregate.add(values, c_i, weight)
        federation.variates.stage(i, r, seen, values)

    def _values(self, i: int, answer: Answer) -> tuple[Flat, Flat | None]:
        """y_i, buffers and c_i+ of an update, and the c_i before."""
        federation = self._federation
        c_i = federation.variates.read(i) if federation.layout.indices(Purpose.CONTROL) else None
        raw = federation.spool.read(self._current.number, i)
        return federation.update_reader.values(raw, self._current.seen, c_i, self._step_sum(answer)), c_i

    def _step_sum(self, answer: Answer) -> float:
        """Sum of the step sizes that a client has taken."""
        return answer.steps * self._federation.eta_l(answer.round)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
