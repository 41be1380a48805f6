"""The updates of one round on their way from the spool into the server's step."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import DivergedError
from common.events import Emit
from common.records.rounds import DriftRecord, Norms, RoundRecord, Seconds
from common.records.sites import SiteCounts
from common.records.traffic import DirectionBytes
from common.server_step.adaptive import Choice
from common.server_step.aggregate import ServerState
from common.server_step.heterogeneity import Heterogeneity
from common.server_step.robust import Clip
from common.server_step.rules import Rules
from common.server_step.step import Closed, ServerStep
from common.server_step.updates import ReadUpdate
from common.tensors.layout import Flat, Layout, Purpose, all_finite
from fedserver.events.rounds import SvrChanged, UpdateClipped
from fedserver.run.adapt import Adaptation
from fedserver.run.round import Round, Update
from fedserver.run.run import Run


@dataclass(frozen=True)
class Folded:
    """What came of a round's updates."""

    rules: Rules
    closed: Closed
    counted: dict[int, Update]
    """Whose updates count."""
    clipped: dict[str, float]
    """Of whose updates not all counts, because they are too large: by name, in medians."""
    evaluations: dict[str, SiteCounts]
    """Of the x that the round began with, at the sites, by name."""
    drift: DriftRecord | None
    """E_r, sigma^2 and zeta^2, where they are asked for."""
    before: Run
    """As the round had it."""
    after: Run
    """With the S_svr of the next round, which x and c are laid out for; the same where S_svr stays."""
    choice: Choice | None
    """How S_svr was chosen, where it is chosen round by round."""
    seconds: float
    """How long the step took."""

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
            clipped={**self.clipped} or None,
            uncounted=self._uncounted() or None,
            train_loss=sum(update.loss / len(updates) for update in updates),
            validation_accuracy=_mean(update.validation_accuracy for update in updates),
            drift={**closed.drift},
            layer_drift={**closed.layer_drift},
            eta_l=rules.eta_l,
            bytes=sent,
            seconds=seconds,
            cka=cka,
            norms=norms,
            client_drift=self.drift,
            svr=self.before.svr if self.choice is not None else None,
        )

    def _uncounted(self) -> dict[str, str]:
        nothing = [i for i, clip in self.closed.clipped.items() if clip.share == 0]
        return {
            self.counted[i].client: "on probation" if i in self.rules.on_probation else "too large"
            for i in nothing
        }


class Fold:
    """Feeds the step in the order of client indices, as soon as updates are there if that is possible."""

    def __init__(
        self, run: Run, current: Round, h: ServerState | None, evicted: frozenset[int] = frozenset()
    ) -> None:
        """`evicted` are the members that are not in c, by index."""
        self._run = run
        self._evicted = evicted
        self._number, self._reader = current.number, current.reader
        self._broadcast = current.reader.broadcast
        self._updates: dict[int, Update] = {}
        self._step = ServerStep(
            current.rules,
            run.layout,
            self._broadcast,
            exact=run.down.plain,
            h=h,
            allocate=run.allocate,
        )
        wanted = current.rules.record_drift
        self._apart = Heterogeneity(current.rules, run.layout, self._broadcast) if wanted else None

    def take(self, i: int, update: Update) -> None:
        """Takes in an update that lies in the spool, decoded and checked."""
        self._updates[i] = update
        read = self._read(i)
        self._step.add(i, read)
        if self._apart is not None:
            self._apart.add(read)
        self._run.variates.stage(i, self._number, self._broadcast, read.values)

    def _read(self, i: int, *, writable: bool = False) -> ReadUpdate:
        run, r, update = self._run, self._number, self._updates[i]
        c_i = self._variate(i)
        values = run.spool.values(r, i, writable=writable)
        return self._reader.read(values, c_i, update.steps, update.examples, follows=update.follows)

    def _variate(self, i: int) -> Flat | None:
        """c_i before the round; in a mapped file where it is held until the end."""
        run, r = self._run, self._number
        c_i = run.variates.read(i) if run.layout.indices(Purpose.CONTROL) else None
        return run.spool.put_aside(r, i, c_i) if c_i is not None and self._step.holds_updates else c_i

    def _again(self, i: int, clip: Clip | None) -> ReadUpdate:
        """An update once more; of one that is too large the variate is taken back where it lies."""
        if clip is None:
            return self._read(i)
        taken_back = self._reader.taken_back(self._read(i, writable=True), clip)
        self._run.variates.stage(i, self._number, self._broadcast, taken_back.values)
        return taken_back

    def _absent(self) -> list[Flat | None]:
        """The variates of everybody who has no update here, for a step that needs them."""
        if not self._step.holds_updates:
            return []
        run, here = self._run, self._updates.keys() | self._evicted
        return [self._variate(i) for i in range(run.config.num_clients) if i not in here]

    def close(self, own: Flat, choice: Choice | None, emit: Emit) -> Folded:
        """Takes the step, now that all updates are there; `own` are the server's x and c of this round.

        `choice` is how its S_svr was chosen, where that is chosen anew now. Raises if x or c is not finite
        any more.
        """
        started, r, rules = time.monotonic(), self._number, self._reader.rules
        closed = self._step.close(own, again=self._again, absent=self._absent())
        for i, clip in closed.clipped.items():
            emit(
                UpdateClipped(
                    round=r,
                    client=self._updates[i].client,
                    times_usual=clip.times_usual,
                    bound=rules.norm_bound or 0.0,
                    share=clip.share,
                )
            )
        _require_finite(r, self._run.layout, closed.flat)
        before = after = self._run
        if choice is not None:
            after, closed, choice = Adaptation(before, self._reader, self._updates)(closed, choice)
            _require_finite(r, after.layout, closed.flat)
        clipped = {self._updates[i].client: clip.times_usual for i, clip in closed.clipped.items()}
        found = {
            each.client: each.evaluation for each in self._updates.values() if each.evaluation is not None
        }
        counted = {i: self._updates[i] for i in closed.counted}
        drift, took = self._drift(), time.monotonic() - started
        return Folded(rules, closed, counted, clipped, found, drift, before, after, choice, took)

    def _drift(self) -> DriftRecord | None:
        if self._apart is None:
            return None
        told = [each.drift for each in self._updates.values() if each.drift is not None]
        drift, noise = ([getattr(each, name) for each in told] for name in ("drift_svr", "noise_svr"))
        others = [(each.drift_sgd, each.noise_sgd) for each in told]
        whole_drift = [a + b for a, (b, _) in zip(drift, others, strict=True)]
        pairs = zip(noise, others, strict=True)
        whole_noise = [a + b for a, (_, b) in pairs if a is not None and b is not None]
        return DriftRecord(
            clients=len(told),
            drift=_mean(whole_drift),
            drift_svr=_mean(drift),
            noise=_mean(whole_noise),
            noise_svr=_mean(noise),
            zeta_svr=self._apart.zeta(reduced=True),
            zeta_sgd=self._apart.zeta(reduced=False),
        )


def tell_of_another_svr(folded: Folded, emit: Emit) -> None:
    """Says what has entered and left S_svr, once the round counts."""
    before, after = folded.before.svr, folded.after.svr
    if before != after:
        layout = folded.after.layout
        emit(
            SvrChanged(
                round=folded.rules.round,
                entered=tuple(name for name in after if name not in before),
                left=tuple(name for name in before if name not in after),
                tensors=len(after),
                share=layout.payload_bytes(Purpose.CONTROL) / layout.payload_bytes(Purpose.MODEL),
            )
        )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _require_finite(r: int, layout: Layout, flat: Flat) -> None:
    for index, spec in enumerate(layout.specs):
        if not all_finite(layout.array(flat, index), spec.dtype):
            raise DivergedError(f"round {r}: {spec.name} is not finite any more; lower --eta-l or --eta-g")
