"""Which modules have variance reduction in the next round, from what the server measured in this one. Pure.

The rule of `--svr auto`: numbers in, a set out. Nothing is in S_svr at first. What counts is how far a
module's gradients are apart from client to client (xi, paper, eq. 2), held against the median over the
modules of the same round: so the number of clients, which is in every xi, cancels out, as a step size does.

    outside  enters once xi > THETA * median in PATIENCE rounds in a row, if there is room for all of it:
             those with the largest xi per byte first
    inside   leaves once xi < THETA / 2 * median in PATIENCE rounds in a row

Between the two thresholds nothing happens, whatever the noise. A module that is in is not put out for a
better one: so two that take turns at being louder do not take turns in S_svr.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

THETA = 2.0
"""A module is apart if its xi is this many times the median; it is not any more at half of that."""
PATIENCE = 2
"""Rounds in a row that it takes to enter or to leave."""


@dataclass(frozen=True)
class Module:
    """Parameters that enter and leave together: the weight and the bias of one layer."""

    name: str
    parameters: tuple[str, ...]
    num_bytes: int
    """Of all of them, as they are stored."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """S_svr of the next round, and what its rule remembers."""

    since: dict[str, int] = field(default_factory=dict)
    """By parameter in S_svr: the round at whose end it entered."""
    streaks: dict[str, int] = field(default_factory=dict)
    """By module: rounds in a row, up to the last, in which it was to enter or, if it is in, to leave."""


def modules(parameters: Mapping[str, int]) -> list[Module]:
    """The modules of a model, in its order; `parameters` has the bytes of each of them by name."""
    members: dict[str, list[str]] = {}
    for name in parameters:
        members.setdefault(name.rpartition(".")[0], []).append(name)
    return [Module(name, tuple(each), sum(parameters[n] for n in each)) for name, each in members.items()]


def next_choice(
    choice: Choice, candidates: Sequence[Module], xi: Mapping[str, float], budget: float, r: int
) -> Choice:
    """S_svr after round r, in which modules were `xi` apart; one that did not move has no entry.

    `budget` is the share that S_svr may have of the bytes of all candidates.
    """
    known = [xi[module.name] for module in candidates if module.name in xi]
    # Of two in the middle the lower: else one of two modules could never be twice the median.
    usual = statistics.median_low(known) if known else 0.0
    streaks = {
        module.name: min(choice.streaks.get(module.name, 0) + 1, PATIENCE)
        for module in candidates
        if module.name in xi and _calls(xi[module.name], usual, inside=_is_in(module, choice))
    }
    due = {name for name, streak in streaks.items() if streak == PATIENCE}
    stay = [module for module in candidates if _is_in(module, choice) and module.name not in due]
    asking = [module for module in candidates if not _is_in(module, choice) and module.name in due]
    room = budget * sum(module.num_bytes for module in candidates) - sum(m.num_bytes for m in stay)
    since = {name: choice.since[name] for module in stay for name in module.parameters}
    settled = {module.name for module in candidates if _is_in(module, choice)} & due
    for module in sorted(asking, key=lambda m: -xi[m.name] / m.num_bytes):
        if module.num_bytes <= room:
            room -= module.num_bytes
            since |= dict.fromkeys(module.parameters, r)
            settled.add(module.name)
    return Choice(since=since, streaks={n: k for n, k in streaks.items() if n not in settled})


def _is_in(module: Module, choice: Choice) -> bool:
    return module.parameters[0] in choice.since


def _calls(xi: float, usual: float, *, inside: bool) -> bool:
    """Whether a module is where it should not be."""
    return xi < THETA / 2 * usual if inside else xi > THETA * usual
