"""What the theorem speaks of: N functions with their mean's minimum, and the constants of its assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""p, the share of coordinates in S_svr: 0 is FedAvg, 1 is SCAFFOLD."""


class Problem(Protocol):
    """f = mean of f_i over N clients, on R^d. A lane is one run; lanes are the first axis of an array."""

    name: str
    num_clients: int
    beta: float
    """Smoothness (A-2): no Hessian of an f_i has a larger eigenvalue."""
    mu: float
    """Convexity (A-1): none has a smaller one."""

    @property
    def optimum(self) -> Float64:
        """x*, of d numbers."""
        ...

    def gradients(self, y: Float64, random: np.random.Generator | None = None) -> Float64:
        """g_i(y_i), lanes x clients x d; with `random` stochastic, the same draw for every lane."""
        ...

    def values(self, x: Float64) -> Float64:
        """f(x) by lane."""
        ...

    def noise(self, x: Float64) -> float:
        """max over clients of E||g_i(x) - grad f_i(x)||^2, for one x."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The theorem's constants of a problem that starts at 0, each by its definition."""

    num_clients: int
    beta: float
    mu: float
    distance: float
    """D = ||x^0 - x*||^2."""
    gap: float
    """F = f(x^0) - f*."""
    zeta2: float
    """zeta^2 = mean ||grad f_i(x*)||^2 (A-3)."""
    sigma2: float
    """sigma^2 (A-5), the larger of its values at x^0 and x*; 0 for exact gradients."""


def constants(problem: Problem, *, stochastic: bool = False) -> Constants:
    """Measures them."""
    start = np.zeros_like(problem.optimum)
    ends = problem.values(np.stack([start, problem.optimum]))
    return Constants(
        num_clients=problem.num_clients,
        beta=problem.beta,
        mu=problem.mu,
        distance=float(problem.optimum @ problem.optimum),
        gap=float(ends[0] - ends[1]),
        zeta2=outside(problem, np.zeros(len(start), bool)),
        sigma2=max(problem.noise(start), problem.noise(problem.optimum)) if stochastic else 0.0,
    )


def outside(problem: Problem, svr: Mask) -> float:
    """zeta_{1-p}^2 = mean ||(1 - p) grad f_i(x*)||^2: the heterogeneity that no variate corrects."""
    at_optimum = np.broadcast_to(problem.optimum, (1, problem.num_clients, len(svr)))
    return float(np.mean(np.sum(np.square(problem.gradients(at_optimum)[0][:, ~svr]), axis=1)))


def last_share(dimension: int, share: float) -> Mask:
    """S_svr: the last share of the coordinates, as a classifier is the last of a network."""
    return np.arange(dimension) >= dimension - round(share * dimension)
