"""What a client sent, as the y_i and c_i that the server's step needs, and c where x tells it. Pure.

Decodes the tensors and, in a run with derived variates, computes c_i+ = c_i - c + (x - y_i) / (K_i * eta_l)
by the same operations as the client. All of x, y_i and c are as the other side sees them after coding, so
that both sides always have the same c_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.algorithms.base import Algorithm
from common.errors import Fault, WireError
from common.server_step.moves import Moves
from common.server_step.rules import Rules
from common.tensors.layout import Array, Flat, Layout, Purpose
from common.wire.encoding import require_finite


@dataclass(frozen=True)
class ReadUpdate:
    """One update, and what the step has to know of it."""

    values: Flat
    """y_i, buffers and c_i+."""
    c_i: Flat | None
    """The client's variate before; None: zero."""
    step_sum: float
    weight: float
    """What y_i counts in the mean."""
    client_weight: float
    """What the client counts in c."""
    follows: bool
    """Whether c_i+ is the one that follows from y_i, to the bit."""
    norms: Mapping[Purpose, float]
    """How far it moves x, the buffers and c_i; empty where nobody asks."""


class UpdateReader:
    """Reads the updates of one round."""

    def __init__(self, rules: Rules, layout: Layout, broadcast: Flat) -> None:
        """`layout` is that of x, the buffers and c, and `broadcast` these as clients saw them."""
        self.rules = rules
        self.broadcast = broadcast
        self._layout = layout
        self._moves = Moves(layout, broadcast)
        self._variates = Layout(layout.specs[k] for k in layout.indices(Purpose.CONTROL))
        self.encoding = rules.update_encoding(layout)
        """What an update looks like on the wire."""

    def values(self, raw: Flat, c_i: Flat | None, steps: int, out: Flat | None = None) -> Flat:
        """y_i, buffers and c_i+ of an update; `c_i` is the client's variate before (None: zero).

        They are written to `out` where one is given, which may begin with `raw`. Where every byte came as it
        is they are `raw` itself. Raises WireError for bytes that mean nothing, and for a number, of c_i+ too,
        that is not finite.
        """
        sent = self.encoding.layout
        if self.encoding.plain and not self.rules.derived:
            require_finite(sent, raw)
            return raw
        values = self._layout.allocate() if out is None else out
        model = values[: sent.num_bytes]  # The tensors that were sent open the whole layout.
        if not self.encoding.plain:
            self.encoding.decode(raw, self.broadcast, model)
        elif not np.may_share_memory(model, raw):
            model[:] = raw
        require_finite(sent, model)
        if self.rules.derived:
            self._write_variate(values, c_i, self.rules.step_sum(steps))
        return values

    def _write_variate(self, values: Flat, c_i: Flat | None, step_sum: float) -> None:
        for k, tensor in self._derived(values, c_i, step_sum):
            if not np.isfinite(tensor).all():
                raise WireError(
                    Fault.NOT_FINITE, "the control variate of this update is not finite; lower --eta-l?"
                )
            self._layout.array(values, k)[...] = tensor

    def read(self, values: Flat, c_i: Flat | None, steps: int, examples: int) -> ReadUpdate:
        """What the step has to know of an update; `c_i` is the client's variate before (None: zero)."""
        step_sum = self.rules.step_sum(steps)
        bounded = self.rules.norm_bound is not None
        return ReadUpdate(
            values=values,
            c_i=c_i,
            step_sum=step_sum,
            weight=self.rules.weight(examples, step_sum),
            client_weight=self.rules.client_weight(examples),
            follows=self._follows(values, c_i, step_sum),
            norms=self._moves.norms(values, c_i) if bounded else {},
        )

    def _follows(self, values: Flat, c_i: Flat | None, step_sum: float) -> bool:
        """Whether the c_i+ of an update is, to the bit, the one that follows from its y_i."""
        if self.rules.derived or not stores_plain_floats(self._layout):
            return self.rules.derived
        derived = self._derived(values, c_i, step_sum)
        return all(np.array_equal(self._layout.array(values, k), tensor) for k, tensor in derived)

    def _derived(self, values: Flat, c_i: Flat | None, step_sum: float) -> Iterator[tuple[int, Array]]:
        """c_i+ as it follows from y_i, by the index of its tensor."""
        before = self._variates.allocate() if c_i is None else c_i
        xs, ys = reduced(self._layout, self.broadcast), reduced(self._layout, values)
        for position, k in enumerate(self._layout.indices(Purpose.CONTROL)):
            old, c = self._variates.array(before, position), self._layout.array(self.broadcast, k)
            with np.errstate(over="ignore", invalid="ignore"):  # What is not finite is looked for afterwards.
                new = self.rules.method.next_variate(old, c, xs[position], ys[position], step_sum, 0.0)
            yield k, new


def reduced(layout: Layout, flat: Flat) -> list[Array]:
    """The parameters of S_svr in the order of c, as views."""
    model = {layout.specs[k].name: k for k in layout.indices(Purpose.MODEL)}
    return [layout.array(flat, model[layout.specs[k].name]) for k in layout.indices(Purpose.CONTROL)]


def stores_plain_floats(layout: Layout) -> bool:
    """Whether arithmetic on the stored elements of S_svr is arithmetic on its numbers."""
    return all(layout.specs[k].dtype in ("float32", "float64") for k in layout.indices(Purpose.CONTROL))


def write_c_from_move(
    layout: Layout, algorithm: Algorithm, before: Sequence[Array], flat: Flat, step_sum: float
) -> None:
    """Writes c into `flat` as it follows from the x in it and the reduced x of the round before."""
    for k, old, new in zip(layout.indices(Purpose.CONTROL), before, reduced(layout, flat), strict=True):
        layout.array(flat, k)[...] = algorithm.c_from_move(old, new, step_sum)
