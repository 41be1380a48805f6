"""The server's step of one round, pure: updates in, the next x, buffers and c out.

reader = UpdateReader(rules, layout, broadcast)    step = ServerStep(rules, layout, broadcast)

    reader.values(raw, c_i, steps)               y_i and c_i+ of an upload, decoded and checked: once
    reader.require_following(values, c_i, ...)   c_i+ follows from y_i
    reader.read(values, c_i, steps, examples)    what the step has to know of it
    step.add(i, update)                          in the order of client indices
    step.close(own, again)                       the next x and c

The server feeds it from its spool and its variates, a replay from a capture. Updates are summed up when the
round closes; only if one of them turns out to be too large, all are asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from common.server_step.aggregate import Aggregate, Allocate, ServerState, first_state
from common.server_step.center import RobustAggregate
from common.server_step.moves import QUIETLY
from common.server_step.robust import Clip, Size
from common.server_step.rules import Rules
from common.server_step.updates import ReadUpdate, reduced, write_c_from_move
from common.tensors.layout import Flat, Layout, Purpose, from_float64, to_float64

Again = Callable[[int, Clip | None], ReadUpdate]
"""Gives the update of a client once more; what is to be clipped has been taken back."""


class CSource(Enum):
    """Where the c of a round comes from."""

    FROM_MOVE = "move"
    """From what x did in the round before: so a client that was there can compute it. At first it is zero."""
    FROM_VARIATES = "variates"
    """From the c_i that came."""


@dataclass(frozen=True)
class Closed:
    """What came of a round."""

    flat: Flat
    """The next x, buffers and c."""
    h: ServerState
    counted: tuple[int, ...]
    """Clients whose updates count."""
    clipped: dict[int, Clip]
    """Those of them of whose updates not all counts: they are too large, or earlier ones were."""
    drift: dict[str, float]
    """Drift diversity by parameter."""
    layer_drift: dict[str, float]
    """Drift diversity by layer."""
    c_source: CSource


class ServerStep:
    """Takes in the updates of one round."""

    def __init__(
        self,
        rules: Rules,
        layout: Layout,
        broadcast: Flat,
        *,
        exact: bool = True,
        h: ServerState | None = None,
        allocate: Allocate = Layout.allocate,
    ) -> None:
        """`broadcast` is x, buffers and c as clients saw them: `exact` if they are the server's own.

        `h` is the server's state before the round; None: as before the first one. `allocate` gives memory
        for the next x, buffers and c.
        """
        rules.require_known_step()
        self._rules = rules
        self._layout = layout
        self._broadcast = broadcast
        self._exact = exact
        self._allocate = allocate
        self._h = first_state(rules, layout) if h is None else h
        self._aggregate = self._nothing_yet()
        self._steps: dict[int, int] = {}
        """K_i by client."""
        self._step_sums: dict[int, float] = {}
        self._all_follow = True

    def _nothing_yet(self) -> Aggregate:
        center = self._rules.robustness.center()
        if center is None:
            return Aggregate(self._layout, self._broadcast, self._allocate)
        return RobustAggregate(self._layout, self._broadcast, center, self._allocate)

    @property
    def holds_updates(self) -> bool:
        """Whether updates are held until the round closes; then they should lie in mapped files."""
        return isinstance(self._aggregate, RobustAggregate)

    def add(self, i: int, update: ReadUpdate) -> None:
        """Takes in the update of client i; clients come in the order of their indices."""
        self._steps[i] = update.steps
        self._count(i, update)

    def _count(self, i: int, update: ReadUpdate) -> None:
        self._all_follow &= update.follows
        self._step_sums[i] = update.step_sum
        self._aggregate.add(update.values, update.c_i, update.weight, update.client_weight)

    def close(self, own: Flat | None = None, *, again: Again, absent: Sequence[Flat | None] = ()) -> Closed:
        """The next x and c. `own` are the server's x, buffers and c where clients saw others.

        `again` gives the update of a client once more, taken back if that is too large. `absent` are the
        variates of the clients that have no update in this round (None: zero).
        """
        before = self._broadcast if own is None else own
        # Norms come with the sums: most rounds count all of every update, and have their result already.
        result = None if self.holds_updates else self._result(before, absent)
        clips = self._clips()
        if clips:
            self._aggregate, result = self._nothing_yet(), None
            for i in self._steps:
                self._count(i, again(i, clips.get(i)))
        flat, h = result or self._result(before, absent)
        source = self._c_source()
        if source is CSource.FROM_MOVE:
            steps = next(iter(self._steps.values()))
            write_c_from_move(self._layout, self._rules, reduced(self._layout, before), flat, steps)
        return Closed(
            flat=flat,
            h=h,
            counted=tuple(self._step_sums),
            clipped=clips,
            drift=self._aggregate.drift_diversity(),
            layer_drift=self._aggregate.drift_diversity(by_layer=True),
            c_source=source,
        )

    def _result(self, before: Flat, absent: Sequence[Flat | None]) -> tuple[Flat, ServerState]:
        return self._aggregate.result(before, self._rules, self._h, absent)

    def _clips(self) -> dict[int, Clip]:
        steps = self._steps.items()
        sizes = {i: Size(norms, k) for (i, k), norms in zip(steps, self._aggregate.norms(), strict=True)}
        return self._rules.robustness.clips(sizes, self._rules.on_probation)

    def _c_source(self) -> CSource:
        """From the move of x if that tells the mean of all c_i.

        It does if all N clients had the same sum of steps, x became the plain mean of their y_i, and every
        c_i+ follows from its y_i, all of it as clients see it.
        """
        alike = len(self._step_sums) == self._rules.num_clients and len(set(self._step_sums.values())) == 1
        rule = (self._rules.eta_g, self._rules.weighting, self._rules.aggregation)
        plain_mean = rule == (1.0, "uniform", "mean")
        tells = alike and plain_mean and self._all_follow and self._exact
        return CSource.FROM_MOVE if tells else CSource.FROM_VARIATES


@QUIETLY
def reweighted(layout: Layout, flat: Flat, before: float, now: float) -> Flat:
    """x and c for a round whose clients together weigh something else than those of the round before.

    A newcomer has a variate of zero and a weight: c, the mean of all c_i, becomes smaller by what the
    newcomer adds to the total weight.
    """
    if before == now:
        return flat
    out = flat.copy()
    for k in layout.indices(Purpose.CONTROL):
        c, dtype = layout.array(out, k), layout.specs[k].dtype
        c[...] = from_float64(to_float64(c, dtype) * (before / now), dtype)
    return out
