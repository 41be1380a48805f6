"""What a client sent, as the y_i and c_i that the server's step needs, and c where x tells it. Pure.

Decodes the tensors and, in a run with derived variates, computes c_i+ = c_i - c + (x - y_i) / (K_i * eta_l)
by the same operations as the client. All of x, y_i and c are as the other side sees them after coding, so
that both sides always have the same c_i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from common.algorithms.base import Algorithm
from common.tensors.layout import Array, Flat, Layout, Purpose
from common.wire.encoding import upward


class UpdateReader:
    """Reads the updates of a run."""

    def __init__(
        self, layout: Layout, algorithm: Algorithm, update_codec: str, control_codec: str, derived: bool
    ) -> None:
        """`layout` is that of x, the buffers and c."""
        self._layout = layout
        self._algorithm = algorithm
        self._derived = derived
        sent = layout.part(Purpose.MODEL, Purpose.BUFFER) if derived else layout
        self.encoding = upward(sent, update_codec, control_codec)
        """What an update looks like on the wire."""

    def values(self, raw: Flat, seen: Flat, c_i: Flat | None, step_sum: float) -> Flat:
        """y_i, buffers and c_i+ of an update; `c_i` is the client's variate before (None: zero)."""
        sent = self.encoding.decode(raw, seen)
        if not self._derived:
            return sent
        values = self._layout.allocate()
        values[: len(sent)] = sent  # The model's tensors open both layouts.
        for k, tensor in self._derive(values, seen, c_i, step_sum):
            self._layout.array(values, k)[...] = tensor
        return values

    def variate_is_finite(self, raw: Flat, seen: Flat, c_i: Flat | None, step_sum: float) -> bool:
        """Whether c_i+ is finite, where it is computed here; one that was sent has been checked already."""
        if not self._derived:
            return True
        values = self.values(raw, seen, c_i, step_sum)
        controls = self._layout.indices(Purpose.CONTROL)
        return all(np.isfinite(self._layout.array(values, k)).all() for k in controls)

    def follows(self, values: Flat, seen: Flat, c_i: Flat | None, step_sum: float) -> bool:
        """Whether the c_i+ in an update is, to the bit, the one that follows from its y_i."""
        if self._derived or not computable(self._layout):
            return self._derived
        derived = self._derive(values, seen, c_i, step_sum)
        return all(np.array_equal(self._layout.array(values, k), tensor) for k, tensor in derived)

    def _derive(
        self, values: Flat, seen: Flat, c_i: Flat | None, step_sum: float
    ) -> Iterator[tuple[int, Array]]:
        """c_i+ as it follows from y_i, by the index of its tensor."""
        controls = self._layout.indices(Purpose.CONTROL)
        variates = Layout(self._layout.specs[k] for k in controls)
        before = variates.allocate() if c_i is None else c_i
        xs, ys = reduced(self._layout, seen), reduced(self._layout, values)
        for position, k in enumerate(controls):
            old, c = variates.array(before, position), self._layout.array(seen, k)
            with np.errstate(over="ignore", invalid="ignore"):  # What is not finite is noticed by the caller.
                new = self._algorithm.next_variate(old, c, xs[position], ys[position], step_sum, 0.0)
            yield k, new


def reduced(layout: Layout, flat: Flat) -> list[Array]:
    """The parameters of S_svr in the order of c, as views."""
    model = {layout.specs[k].name: k for k in layout.indices(Purpose.MODEL)}
    return [layout.array(flat, model[layout.specs[k].name]) for k in layout.indices(Purpose.CONTROL)]


def computable(layout: Layout) -> bool:
    """Whether plain arithmetic on stored elements is arithmetic on S_svr's numbers."""
    return all(layout.specs[k].dtype in ("float32", "float64") for k in layout.indices(Purpose.CONTROL))


def shared_step_sum(
    step_sums: Sequence[float], num_clients: int, eta_g: float, weighting: str
) -> float | None:
    """The sum of step sizes that all N clients had in a round with x the plain mean of the y_i, else None.

    Only then the next c, the mean of all c_i, follows from x before and after the round alone.
    """
    alike = len(step_sums) == num_clients and len(set(step_sums)) == 1
    return step_sums[0] if alike and (eta_g, weighting) == (1.0, "uniform") else None


def share_variate(
    layout: Layout, algorithm: Algorithm, before: Sequence[Array], flat: Flat, step_sum: float
) -> None:
    """Writes c into `flat` as it follows from the x in it and the reduced x of the round before."""
    for k, old, new in zip(layout.indices(Purpose.CONTROL), before, reduced(layout, flat), strict=True):
        layout.array(flat, k)[...] = algorithm.shared_variate(old, new, step_sum)
