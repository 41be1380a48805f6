"""The updates of one round on their way from the spool into the server's step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import RunError
from common.events import Emit
from common.records.rounds import Norms, RoundRecord, Seconds
from common.records.traffic import DirectionBytes
from common.server_step.aggregate import ServerState
from common.server_step.rules import Rules
from common.server_step.step import Closed, ServerStep
from common.tensors.layout import Flat, Layout, Purpose, all_finite
from fedserver.events.rounds import UpdateLeftOut
from fedserver.run.round import Round, Update
from fedserver.run.run import Run


@dataclass(frozen=True)
class Folded:
    """What came of a round's updates."""

    rules: Rules
    closed: Closed
    counted: dict[int, Update]
    """Whose updates count."""
    left_out: dict[str, float]
    """Whose do not, because they are too large: by name, in medians."""

    def record(
        self, sent: DirectionBytes, seconds: Seconds, cka: dict[str, float | None] | None, norms: Norms
    ) -> RoundRecord:
        """What rounds.jsonl says of the round, before x is evaluated."""
        updates, rules, closed = self.counted.values(), self.rules, self.closed
        return RoundRecord(
            round=rules.round,
            accuracy=None,
            loss=None,
            updates=len(updates),
            left_out={**self.left_out} if rules.norm_bound is not None else None,
            train_loss=sum(update.loss / len(updates) for update in updates),
            validation_accuracy=_mean(update.validation_accuracy for update in updates),
            drift={**closed.drift},
            layer_drift={**closed.layer_drift},
            eta_l=rules.eta_l,
            bytes=sent,
            seconds=seconds,
            cka=cka,
            norms=norms,
        )


class Fold:
    """Feeds the step in the order of client indices, as soon as updates are there if that is possible."""

    def __init__(self, run: Run, current: Round, h: ServerState | None) -> None:
        self._run = run
        self._current = current
        self._broadcast = current.reader.broadcast
        self._updates: dict[int, Update] = {}
        self._step = ServerStep(current.rules, run.layout, self._broadcast, exact=run.down.plain, h=h)

    def take(self, i: int, update: Update) -> None:
        """Takes in an update that lies in the spool, decoded and checked."""
        run, r, held = self._run, self._current.number, self._step.holds_updates
        c_i = run.variates.read(i) if run.layout.indices(Purpose.CONTROL) else None
        if held and c_i is not None:
            c_i = run.spool.put_aside(r, i, c_i)
        values = run.spool.values(r, i)
        self._updates[i] = update
        self._step.add(i, self._current.reader.read(values, c_i, update.steps, update.examples))
        if not held:
            run.variates.stage(i, r, self._broadcast, values)

    def close(self, own: Flat, emit: Emit) -> Folded:
        """Takes the step, now that all updates are there; `own` are the server's x and c of this round.

        Raises if x or c is not finite any more.
        """
        run, r, rules = self._run, self._current.number, self._current.rules
        closed = self._step.close(own)
        if self._step.holds_updates:
            for i in closed.counted:
                run.variates.stage(i, r, self._broadcast, run.spool.values(r, i))
        left_out = {self._updates[i].client: times for i, times in closed.left_out.items()}
        for name, times in left_out.items():
            emit(UpdateLeftOut(round=r, client=name, times_median=times, bound=rules.norm_bound or 0.0))
        _require_finite(r, run.layout, closed.flat)
        return Folded(rules, closed, {i: self._updates[i] for i in closed.counted}, left_out)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _require_finite(r: int, layout: Layout, flat: Flat) -> None:
    for index, spec in enumerate(layout.specs):
        if not all_finite(layout.array(flat, index), spec.dtype):
            raise RunError(f"round {r}: {spec.name} is not finite any more; lower --eta-l or --eta-g")
