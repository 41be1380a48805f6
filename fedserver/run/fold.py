"""The updates of one round on their way into the next x and c."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common.events import Emit
from common.records.rounds import Norms, RoundRecord, Seconds
from common.records.traffic import DirectionBytes
from common.server_step.robust import move_norms
from common.tensors.layout import Flat, Purpose
from fedserver.events import UpdateLeftOut
from fedserver.run.round import Round, Update
from fedserver.run.run import Run


class Fold:
    """Takes updates in, in the order of client indices, as soon as they are there if that is possible."""

    def __init__(self, run: Run, current: Round, emit: Emit) -> None:
        self._run = run
        self.round = current.number
        self._broadcast = current.broadcast
        self._emit = emit
        self._robustness = run.config.robustness
        self._norms: dict[int, dict[Purpose, float]] = {}
        self.aggregate = self._robustness.aggregate(run.layout, current.broadcast)
        self.counted: dict[int, Update] = {}
        """Whose updates count."""
        self.left_out: dict[str, float] = {}
        """Whose do not, because they are too large: by name, in medians."""
        self.consistent = True
        """Whether every c_i follows from its y_i."""

    def take(self, i: int, update: Update) -> None:
        """Takes in an update; with a bound on norms it is only measured until all are there."""
        self.counted[i] = update
        if self._robustness.norm_bound is None:
            self._add(i, update)
        else:
            self._norms[i] = move_norms(self._run.layout, self._broadcast, *self._values(i, update))

    def finish(self) -> None:
        """Leaves out what is too large, now that all updates are there, and takes in the others."""
        for i, times in self._robustness.outliers(self._norms).items():
            name = self.counted.pop(i).client
            self.left_out[name] = times
            bound = self._robustness.norm_bound or 0.0
            self._emit(UpdateLeftOut(round=self.round, client=name, times_median=times, bound=bound))
        for i in sorted(self._norms.keys() & self.counted.keys()):
            self._add(i, self.counted[i])

    def step_sums(self) -> list[float]:
        """Sums of the step sizes of those who count."""
        return [self._step_sum(update) for update in self.counted.values()]

    def record(
        self, sent: DirectionBytes, seconds: Seconds, cka: dict[str, float | None] | None, norms: Norms
    ) -> RoundRecord:
        """What rounds.jsonl says of the round, before x is evaluated."""
        updates, bounded = self.counted.values(), self._robustness.norm_bound is not None
        return RoundRecord(
            round=self.round,
            accuracy=None,
            loss=None,
            updates=len(updates),
            left_out={**self.left_out} if bounded else None,
            train_loss=sum(update.loss / len(updates) for update in updates),
            validation_accuracy=_mean(update.validation_accuracy for update in updates),
            drift=self.aggregate.drift_diversity(),
            layer_drift=self.aggregate.drift_diversity(by_layer=True),
            eta_l=self._run.eta_l(self.round),
            bytes=sent,
            seconds=seconds,
            cka=cka,
            norms=norms,
        )

    def model_files(self) -> list[Path]:
        """Files that open with the tensors of y_i."""
        return [self._model_file(i, update) for i, update in self.counted.items()]

    def _model_file(self, i: int, update: Update) -> Path:
        spool, r = self._run.spool, self.round
        if self._run.update_reader.encoding.plain:
            return spool.path(r, i)
        if not spool.values_path(r, i).exists():
            spool.write_values(r, i, self._values(i, update)[0])
        return spool.values_path(r, i)

    def _add(self, i: int, update: Update) -> None:
        run, r, broadcast = self._run, self.round, self._broadcast
        values, c_i = self._values(i, update)
        if self._robustness.aggregation != "mean":
            # Held until all are there, so in a file and not in memory.
            values = run.spool.write_values(r, i, values)
            c_i = None if c_i is None else run.spool.write_values(r, i, c_i, ".before")
        self.consistent &= run.update_reader.follows(values, broadcast, c_i, self._step_sum(update))
        weight = float(update.examples) if run.config.weighting == "examples" else 1.0
        self.aggregate.add(values, c_i, weight)
        run.variates.stage(i, r, broadcast, values)

    def _values(self, i: int, update: Update) -> tuple[Flat, Flat | None]:
        """y_i, buffers and c_i+ of an update, and the c_i before."""
        run = self._run
        c_i = run.variates.read(i) if run.layout.indices(Purpose.CONTROL) else None
        raw = run.spool.read(self.round, i)
        return run.update_reader.values(raw, self._broadcast, c_i, self._step_sum(update)), c_i

    def _step_sum(self, update: Update) -> float:
        """Sum of the step sizes that a client has taken."""
        return update.steps * self._run.eta_l(update.round)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
