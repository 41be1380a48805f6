"""The rules of a local step: which parameters have momentum, weight decay and clipping. Pure.

    g <- g * min(1, clip_norm / ||g||)      the norm is over all parameters that are clipped
    g <- g + weight_decay * y               as torch's SGD does it
    u <- g + correction + prox_weight * (y - x)
    v <- momentum * v + u,  y <- y - eta_l * v        v starts at zero in each round; without momentum v = u

A client's variate is made of what x has moved. With v = 0 at first, the direction u of step k is in y with
eta_l * (1 + m + ... + m^(K-k)), so (x - y) divided by the sum of these is a weighted mean of the directions,
and c_i+ one of the gradients: all of them weights that add up to 1, the early ones larger. Without momentum
each has the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from common.algorithms import NOTHING, selects
from common.errors import WireError, printable

OUTSIDE_SVR, ALL = "outside-svr", "all"
PLACES = (OUTSIDE_SVR, ALL)
"""Where weight decay and clipping may act."""
MAX_PATTERNS, MAX_PATTERN = 64, 512
"""How many there may be, and their length."""


@dataclass(frozen=True, kw_only=True)
class LocalRules:
    """What is done to a gradient before and after the algorithm's own terms."""

    eta_l: float
    """Local step size of this round."""
    momentum: float = 0.0
    momentum_on: tuple[str, ...] = ()
    """Which parameters have it: patterns, or one of `PLACES`; none given: those outside S_svr."""
    weight_decay: float = 0.0
    """Weight of y in the gradient."""
    weight_decay_on: str = OUTSIDE_SVR
    clip_norm: float | None = None
    """The gradient's norm, before anything is added to it, is brought down to this."""
    clip_on: str = OUTSIDE_SVR

    def with_momentum(self, parameters: Iterable[str], svr: Collection[str]) -> list[str]:
        """Which of these parameters have momentum."""
        return [name for name in parameters if self.has_momentum(name, reduced=name in svr)]

    def has_momentum(self, name: str, *, reduced: bool) -> bool:
        """Whether a parameter has momentum; `reduced` if it is in S_svr."""
        if not self.momentum:
            return False
        return any(_chooses(where, name, reduced) for where in self.momentum_on or (OUTSIDE_SVR,))

    def decayed(self, parameters: Iterable[str], svr: Collection[str]) -> list[str]:
        """Which of these parameters have weight decay."""
        return [n for n in parameters if self.weight_decay and _chooses(self.weight_decay_on, n, n in svr)]

    def clipped(self, parameters: Iterable[str], svr: Collection[str]) -> list[str]:
        """Which of these parameters are clipped, by the norm of all of them together."""
        return [n for n in parameters if self.clip_norm and _chooses(self.clip_on, n, n in svr)]

    def effective_steps(self, name: str, steps: int, *, reduced: bool) -> float:
        """How many steps without momentum move a parameter as far as so many under these rules."""
        if not self.has_momentum(name, reduced=reduced):
            return steps
        return momentum_steps(steps, self.momentum)

    def require_sense(self) -> None:
        """Raises WireError for what no local step can have."""
        if not 0 < self.eta_l < math.inf:
            raise WireError.malformed(f"eta_l must be positive and finite, got {self.eta_l}")
        if not 0 <= self.momentum < 1:
            raise WireError.malformed(f"momentum must be from 0 to below 1, got {self.momentum}")
        for name, value in (("weight_decay", self.weight_decay), ("clip_norm", self.clip_norm or 0.0)):
            if not 0 <= value < math.inf:
                raise WireError.malformed(f"{name} must be finite and not negative, got {value}")
        for name, where in (("weight_decay_on", self.weight_decay_on), ("clip_on", self.clip_on)):
            if where not in PLACES:
                known, shown = ", ".join(PLACES), printable(where, 80)
                raise WireError.malformed(f"{name} is one of {known}, got {shown!r}")
        if too_many(self.momentum_on):
            raise WireError.malformed(
                f"momentum_on has up to {MAX_PATTERNS} patterns of {MAX_PATTERN} characters"
            )

    @property
    def local_features(self) -> tuple[str, ...]:
        """What a client has to know beyond the first release, by name."""
        moved = self.momentum and set(self.momentum_on) - {OUTSIDE_SVR}
        asked = {"momentum-on": moved, "weight-decay": self.weight_decay, "clip-norm": self.clip_norm}
        return tuple(name for name, wanted in asked.items() if wanted)


def too_many(patterns: Collection[str]) -> bool:
    """Whether there are more patterns, or longer ones, than a header may have."""
    return len(patterns) > MAX_PATTERNS or any(len(pattern) > MAX_PATTERN for pattern in patterns)


def _chooses(where: str, name: str, reduced: bool) -> bool:
    if where in PLACES:
        return where == ALL or not reduced
    return where not in NOTHING and selects(where, name)


@lru_cache(maxsize=64)
def momentum_steps(steps: int, momentum: float) -> float:
    """1 + (1 + m) + (1 + m + m^2) + ..., as many terms as steps.

    By additions and multiplications alone, so that it is the same number on every machine.
    """
    total = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        total += velocity
    return total
