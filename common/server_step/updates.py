"""What a client sent, as the y_i and c_i that the server's step needs, and c where x tells it. Pure.

Decodes the tensors and, in a run with derived variates, computes c_i+ = c_i - c + (x - y_i) / (K_i * eta_l)
by the same operations as the client. All of x, y_i and c are as the other side sees them after coding, so
that both sides always have the same c_i.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.errors import Fault, WireError
from common.server_step.moves import QUIETLY, Moves
from common.server_step.robust import Clip
from common.server_step.rules import Rules
from common.tensors.layout import Array, Flat, Float64, Layout, Purpose, to_float64
from common.wire.codec_choice import coding_error
from common.wire.encoding import require_finite

PLAIN_FLOATS = ("float32", "float64")
ROUNDING = 1e-4
"""What rounding may change of a c_i+, in the largest number it is made of; a thousand times what it does."""
ROUNDING_16 = 2.0**-5
"""The same for numbers of 16 bits."""


@dataclass(frozen=True)
class ReadUpdate:
    """One update, and what the step has to know of it."""

    values: Flat
    """y_i, buffers and c_i+."""
    c_i: Flat | None
    """The client's variate before; None: zero."""
    steps: int
    """K_i."""
    step_sum: float
    """Of the sizes of the steps."""
    weight: float
    """What y_i counts in the mean."""
    client_weight: float
    """What the client counts in c."""
    follows: bool
    """Whether c_i+ is the one that follows from y_i, to the bit."""


class UpdateReader:
    """Reads the updates of one round."""

    def __init__(self, rules: Rules, layout: Layout, broadcast: Flat) -> None:
        """`layout` is that of x, the buffers and c, and `broadcast` these as clients saw them."""
        self.rules = rules
        self.broadcast = broadcast
        self._layout = layout
        self._moves = Moves(layout, broadcast)
        self._parameters = _parameters(layout)
        self.encoding = rules.update_encoding(layout)
        """What an update looks like on the wire."""

    def values(
        self,
        raw: Flat,
        c_i: Flat | None,
        steps: int,
        out: Flat | None = None,
        seen: Collection[Purpose] = (),
    ) -> Flat:
        """y_i, buffers and c_i+ of an update, or c_i alone where a gradient is asked for.

        `c_i` is the client's variate before (None: zero). They are written to `out` where one is given, which
        may begin with `raw`. Where every byte came as it is they are `raw` itself. Raises WireError for bytes
        that mean nothing, and for a number, of c_i+ too, that is not finite; purposes in `seen` are known to
        be, as long as nothing is coded.
        """
        seen = seen if self.encoding.plain else ()
        sent = self.encoding.layout
        if self.rules.gradient_only:
            variate = self.encoding.decode(raw, None, out)
            require_finite(sent, variate, seen)
            return variate
        if self.encoding.plain and not self.rules.derived:
            require_finite(sent, raw, seen)
            return raw
        values = self._layout.allocate() if out is None else out
        model = values[: sent.num_bytes]  # The tensors that were sent open the whole layout.
        if not self.encoding.plain:
            self.encoding.decode(raw, self.broadcast, model)
        elif not np.may_share_memory(model, raw):
            model[:] = raw
        require_finite(sent, model, seen)
        if self.rules.derived:
            self._write_variate(values, c_i, steps)
        return values

    def _write_variate(self, values: Flat, c_i: Flat | None, steps: int) -> None:
        for k, tensor in self._derived(values, c_i, steps):
            if not np.isfinite(tensor).all():
                raise WireError(
                    Fault.NOT_FINITE, "the control variate of this update is not finite; lower --eta-l?"
                )
            self._layout.array(values, k)[...] = tensor

    def read(self, values: Flat, c_i: Flat | None, steps: int, examples: int, *, follows: bool) -> ReadUpdate:
        """What the step has to know of an update; `c_i` is the client's variate before (None: zero).

        `follows` is what `require_following` found.
        """
        step_sum = self.rules.step_sum(steps)
        return ReadUpdate(
            values=values,
            c_i=c_i,
            steps=steps,
            step_sum=step_sum,
            weight=self.rules.weight(examples, step_sum),
            client_weight=self.rules.client_weight(examples),
            follows=follows,
        )

    def taken_back(self, update: ReadUpdate, clip: Clip) -> ReadUpdate:
        """An update that is too large, with less weight; its c_i+ is brought back to what counts of it."""
        self._moves.take_variate_back(update.values, update.c_i, clip.variate_share)
        return replace(update, weight=update.weight * clip.share, follows=False)

    def require_following(self, values: Flat, c_i: Flat | None, steps: int) -> bool:
        """Whether the c_i+ of an update is, to the bit, the one that follows from its y_i.

        Raises WireError if it is another one by more than coding and rounding explain: there is nothing about
        its c_i that a client may choose.
        """
        if self.rules.gradient_only:
            return False
        plain = stores_plain_floats(self._layout)
        if self.rules.derived or not self._parameters:
            return plain
        same = plain
        if plain:
            derived = self._derived(values, c_i, steps)
            same = all(np.array_equal(self._layout.array(values, k), tensor) for k, tensor in derived)
        for k in self._parameters if not same else ():
            error, most = self._deviation(k, values, c_i, steps)
            if not error <= most:
                raise WireError.broken_contract(
                    f"c_i must follow from y_i, c and the c_i before, but is off by {error:.2g}; "
                    f"coding and rounding explain {most:.2g}",
                    self._layout.specs[k].name,
                )
        return same

    @QUIETLY
    def _deviation(self, k: int, values: Flat, c_i: Flat | None, steps: int) -> tuple[float, float]:
        """How far a tensor of c_i+ is from the one that follows, and how far it may be.

        Hardware and codecs differ a little, liars by more.
        """
        dtype, codec = self._layout.specs[k].dtype, self.encoding.tensor_encodings[k].codec
        old, c, x, y = (to_float64(each, dtype) for each in self._parts(k, values, c_i))
        step_sum = self.rules.variate_step_sum(self._layout.specs[k].name, steps)
        follows = self.rules.method.next_variate(old, c, x, y, step_sum, 0.0)
        error = np.abs(to_float64(self._layout.array(values, k), dtype) - follows)
        largest = max(_largest(each) for each in (old, c, (x - y) / step_sum))
        rounding = ROUNDING if dtype in PLAIN_FLOATS else ROUNDING_16
        return _largest(error), rounding * largest + (1 + rounding) * coding_error(codec, _largest(follows))

    def _derived(self, values: Flat, c_i: Flat | None, steps: int) -> Iterator[tuple[int, Array]]:
        """c_i+ as it follows from y_i, by the index of its tensor."""
        for k in self._layout.indices(Purpose.CONTROL):
            old, c, x, y = self._parts(k, values, c_i)
            step_sum = self.rules.variate_step_sum(self._layout.specs[k].name, steps)
            with np.errstate(over="ignore", invalid="ignore"):  # What is not finite is looked for afterwards.
                new = self.rules.method.next_variate(old, c, x, y, step_sum, 0.0)
            yield k, new

    def _parts(self, k: int, values: Flat, c_i: Flat | None) -> tuple[Array, Array, Array, Array]:
        """c_i, c, x and y_i of a tensor of S_svr, as stored."""
        c, model = self._layout.array(self.broadcast, k), self._parameters[k]
        old = self._moves.variate(k, c_i).reshape(c.shape)
        return old, c, self._layout.array(self.broadcast, model), self._layout.array(values, model)


def _largest(array: Float64) -> float:
    return float(np.abs(array).max(initial=0.0))


def reduced(layout: Layout, flat: Flat) -> list[Array]:
    """The parameters of S_svr in the order of c, as views."""
    return [layout.array(flat, model) for model in _parameters(layout).values()]


def _parameters(layout: Layout) -> dict[int, int]:
    """The index of the parameter that each tensor of c belongs to."""
    model = {layout.specs[k].name: k for k in layout.indices(Purpose.MODEL)}
    return {k: model[layout.specs[k].name] for k in layout.indices(Purpose.CONTROL)}


def stores_plain_floats(layout: Layout) -> bool:
    """Whether arithmetic on the stored elements of S_svr is arithmetic on its numbers."""
    return all(layout.specs[k].dtype in PLAIN_FLOATS for k in layout.indices(Purpose.CONTROL))


def write_c_from_move(layout: Layout, rules: Rules, before: Sequence[Array], flat: Flat, steps: int) -> None:
    """Writes c into `flat` as it follows from the x in it and the reduced x of the round before.

    `rules` are those of that round, in which every client has made so many steps.
    """
    for k, old, new in zip(layout.indices(Purpose.CONTROL), before, reduced(layout, flat), strict=True):
        step_sum = rules.variate_step_sum(layout.specs[k].name, steps)
        layout.array(flat, k)[...] = rules.method.c_from_move(old, new, step_sum)
