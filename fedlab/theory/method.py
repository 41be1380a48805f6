"""FedPVR round by round in the form of the paper's appendix, with c_i of full length that is 0 outside S_svr.

    y_i <- y_i - eta_l (g_i(y_i) + c - c_i)          K times, from y_i = x
    c_i <- c_i - c + (x - y_i) / (K eta_l)           on S_svr
    x   <- x + eta_g mean(y_i - x),   c = mean(c_i)

The correction and the variate are the lines that clients and server compute with (common/algorithms).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.algorithms.svr import FedPVR
from fedlab.theory.problem import Float64, Mask, Problem

FEDPVR = FedPVR()
AT_ONCE = 64
"""Points whose values are computed together."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How a round is walked."""

    local_steps: int
    """K."""
    eta_l: float
    eta_g: float = 1.0

    @property
    def effective(self) -> float:
        """K eta_l eta_g, the paper's eta with a tilde."""
        return self.local_steps * self.eta_l * self.eta_g

    @classmethod
    def of(cls, effective: float, local_steps: int, eta_g: float) -> Steps:
        """Those with this effective step."""
        return cls(local_steps=local_steps, eta_l=effective / (local_steps * eta_g), eta_g=eta_g)


@dataclass(frozen=True)
class State:
    """What is left between two rounds."""

    x: Float64
    """Lanes x d."""
    c_is: Float64
    """Lanes x clients x d."""

    @classmethod
    def first(cls, lanes: int, num_clients: int, start: Float64) -> State:
        """Every lane at one start, with variates of zero."""
        return cls(np.tile(start, (lanes, 1)), np.zeros((lanes, num_clients, len(start))))


def next_state(
    problem: Problem, state: State, svr: Mask, steps: Steps, random: np.random.Generator | None = None
) -> State:
    """One round; `svr`, lanes x d, says which coordinates of a lane are in S_svr."""
    x = state.x[:, None, :]
    c = state.c_is.mean(1, keepdims=True)
    correction = FEDPVR.correction(state.c_is, c)
    y = np.broadcast_to(x, state.c_is.shape)
    for _ in range(steps.local_steps):
        y = y - steps.eta_l * (problem.gradients(y, random) + correction)
    c_is = FEDPVR.next_variate(state.c_is, c, x, y, steps.local_steps * steps.eta_l, 0.0)
    return State(state.x + steps.eta_g * (y - x).mean(1), np.where(svr[:, None, :], c_is, 0.0))


@dataclass(frozen=True)
class Trace:
    """What became of x, rounds 0 to R by lane."""

    errors: Float64
    """f(x^r) - f*; what rounding puts below 0 is 0."""
    distances: Float64
    """||x^r - x*||^2."""
    last: State


def run(
    problem: Problem,
    svr: Mask,
    steps: Steps,
    rounds: int,
    *,
    start: Float64 | None = None,
    random: np.random.Generator | None = None,
) -> Trace:
    """R rounds from x^0 = 0, or from elsewhere, in all lanes at once."""
    start = np.zeros_like(problem.optimum) if start is None else start
    state = State.first(len(svr), problem.num_clients, start)
    visited = [state.x]
    for _ in range(rounds):
        state = next_state(problem, state, svr, steps, random)
        visited.append(state.x)
    xs = np.stack(visited)
    flat = xs.reshape(-1, xs.shape[-1])
    pieces = [problem.values(flat[k : k + AT_ONCE]) for k in range(0, len(flat), AT_ONCE)]
    lowest = problem.values(problem.optimum[None])[0]
    errors = np.maximum(np.concatenate(pieces).reshape(xs.shape[:2]) - lowest, 0.0)
    return Trace(errors, np.square(xs - problem.optimum).sum(-1), state)
