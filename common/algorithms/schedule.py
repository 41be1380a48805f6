"""How the local step size changes over the rounds. Within a round it is constant."""

from __future__ import annotations

import math
from collections.abc import Callable

MILESTONES = (0.5, 0.75)
FACTOR = 0.1


def _constant(done: float) -> float:
    return 1.0


def _cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


def _multistep(done: float) -> float:
    return FACTOR ** sum(done >= milestone for milestone in MILESTONES)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": _constant,
    "cosine": _cosine,
    "multistep": _multistep,
}
"""The factor on eta_l by the share of rounds that are done."""


def step_size(schedule: str, eta_l: float, r: int, rounds: int) -> float:
    """eta_l of round r, from 1 to `rounds`."""
    return eta_l * SCHEDULES[schedule]((r - 1) / rounds)
