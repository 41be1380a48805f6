"""What a change of S_svr does to c and to every c_i. Pure, on flat buffers.

A parameter that enters has its variates at once, because the server has every y_i of the round. Without
variance reduction y_i - x is made of raw gradients alone, so c_i = (x - y_i) / (what they were multiplied
with) is their mean. Clients without an update in that round have zero, as clients have that never took part;
c is the mean, or the center, of all of them, as ever. What stays is as it was, to the bit, and what leaves is
forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from common.server_step import adaptive
from common.server_step.adaptive import Choice
from common.server_step.moves import QUIETLY, square
from common.server_step.recount import recounted
from common.server_step.rules import Rules
from common.tensors.layout import Flat, Float64, Layout, Purpose, from_float64, to_float64


@dataclass(frozen=True, eq=False)
class Answered:
    """An update that counts."""

    values: Flat
    """y_i, buffers and c_i+."""
    steps: int
    """K_i."""
    weight: float
    """What y_i counts in the mean."""
    client_weight: float
    """What the client counts in c."""
    variate_share: float = 1.0
    """What of a new variate counts; less than 1 where the update is too large."""


Answers = Callable[[], Iterator[Answered]]
"""Gives all updates of a round that count, in the order of client indices, as often as it is called."""


def chosen(
    rules: Rules, layout: Layout, choice: Choice, layer_drift: Mapping[str, float], answers: Answers
) -> Choice:
    """S_svr of the next round; `layer_drift` is xi of the y_i - x by module."""
    parameters = {layout.specs[k].name: layout.specs[k].num_bytes for k in layout.indices(Purpose.MODEL)}
    xi = {**layer_drift} | raw_diversity(rules, layout, answers)
    return adaptive.next_choice(choice, adaptive.modules(parameters), xi, rules.svr_budget, rules.round)


@QUIETLY
def raw_diversity(rules: Rules, layout: Layout, answers: Answers) -> dict[str, float]:
    """xi by module of S_svr as it would be without variance reduction.

    There y_i - x has the correction in it, which makes clients move alike: by that, a module would leave
    because it does well inside. c_i+ is the mean of the raw gradients; times the step sum it is the move that
    they ask for.
    """
    controls = layout.indices(Purpose.CONTROL)
    sums: dict[int, Float64] = {k: np.zeros(layout.specs[k].num_elements) for k in controls}
    apart, together = defaultdict[str, float](float), defaultdict[str, float](float)
    for answer in answers() if controls else ():
        for k in controls if answer.weight else ():
            spec = layout.specs[k]
            move = to_float64(layout.array(answer.values, k).reshape(-1), spec.dtype)
            move *= answer.weight * rules.step_sum(answer.steps)
            apart[_module(spec.name)] += square(move)
            sums[k] += move
    for k in controls:
        together[_module(layout.specs[k].name)] += square(sums[k])
    found = {name: apart[name] / size for name, size in together.items() if size > 0}
    return {name: xi for name, xi in found.items() if np.isfinite(xi)}


def _module(name: str) -> str:
    return name.rpartition(".")[0]


class Change:
    """From the S_svr of one round to that of the next."""

    def __init__(self, rules: Rules, layout: Layout, after: Layout, broadcast: Flat) -> None:
        """`layout` is that of the round, whose `broadcast` clients saw, and `after` that of the next one."""
        self._rules = rules
        self._layout = layout
        self._after = after
        self._broadcast = broadcast
        self._variates = rules.method.variates(after)
        self._models = {layout.specs[k].name: k for k in layout.indices(Purpose.MODEL)}
        self._kept = {layout.specs[k].name: k for k in layout.indices(Purpose.CONTROL)}

    def variate(self, answer: Answered) -> Flat:
        """The c_i that a client starts the next round from."""
        flat = self._variates.allocate()
        for to, spec in enumerate(self._variates.specs):
            kept = self._kept.get(spec.name)
            new = self.entering(spec.name, answer) if kept is None else self._layout.raw(answer.values, kept)
            self._variates.raw(flat, to)[:] = new
        return flat

    def absent(self, c_i: Flat) -> Flat:
        """The same for a client without an update in the round: what stays, and zero for what enters."""
        before, flat = self._rules.method.variates(self._layout), self._variates.allocate()
        places = {spec.name: k for k, spec in enumerate(before.specs)}
        for to, spec in enumerate(self._variates.specs):
            if spec.name in places:
                self._variates.raw(flat, to)[:] = before.raw(c_i, places[spec.name])
        return flat

    @QUIETLY
    def entering(self, name: str, answer: Answered) -> Flat:
        """The bytes of the variate of a parameter that enters: the mean of its raw gradients."""
        k, rules = self._models[name], self._rules
        dtype = self._layout.specs[k].dtype
        x, y = (to_float64(self._layout.array(f, k), dtype) for f in (self._broadcast, answer.values))
        divisor = rules.outside_step_sum(name, answer.steps)
        mean = from_float64((x - y) * (answer.variate_share / divisor), dtype)
        return np.ascontiguousarray(mean).reshape(-1).view(np.uint8)

    def flat(self, closed: Flat, answers: Answers) -> Flat:
        """x, buffers and c of the next round, from those that the server's step has made."""
        out = self._after.allocate()
        end = self._layout.part(Purpose.MODEL, Purpose.BUFFER).num_bytes
        out[:end] = closed[:end]
        for to in self._after.indices(Purpose.CONTROL):
            spec = self._after.specs[to]
            if spec.name in self._kept:
                self._after.raw(out, to)[:] = self._layout.raw(closed, self._kept[spec.name])
                continue
            known = _Entering(self, spec.name, answers)
            (mean,) = recounted(self._rules, Layout([spec]), known)
            self._after.array(out, to)[...] = from_float64(mean, spec.dtype).reshape(spec.shape)
        return out


@dataclass(frozen=True)
class _Entering:
    """The variates of one parameter that enters, one client after the other: never all in memory."""

    change: Change
    name: str
    answers: Answers

    def __iter__(self) -> Iterator[tuple[float, Flat]]:
        for answer in self.answers():
            yield answer.client_weight, self.change.entering(self.name, answer)
