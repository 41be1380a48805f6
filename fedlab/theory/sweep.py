"""Errors after R rounds by p, K and eta_g, beside the theorem's bound with the measured constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedlab.theory import bound
from fedlab.theory.method import Steps, run
from fedlab.theory.problem import SHARES, Constants, Float64, Problem, constants, last_share, outside

LOCAL_STEPS = (1, 5, 20)
SHOWN = 5
"""K of the curves."""
BEYOND = 1 / 2
"""t of a step that practice would take, and of which the theorem says nothing."""
NOISE_SEED = 1


@dataclass(frozen=True, kw_only=True)
class BoundedRun:
    """One run beside its bounds; None where t is too large for them."""

    problem: str
    stochastic: bool
    t: float
    """K eta_l eta_g beta."""
    local_steps: int
    eta_g: float
    share: float
    zeta2_outside: float
    error: float
    """f(x^R) - f*."""
    mean_error: float
    """Mean of f(x^r) - f* with the theorem's weights."""
    distance: float
    """||x^R - x*||^2."""
    error_bound: float | None
    distance_bound: float | None
    distance_sharper: float | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """f(x^r) - f* of one share."""

    t: float
    share: float
    errors: list[float]


@dataclass(frozen=True, kw_only=True)
class ProblemRuns:
    """All cells of a problem, and the curves of some."""

    problem: str
    constants: Constants
    cells: list[BoundedRun]
    curves: list[Curve]


def sweep(problem: Problem, rounds: int, *, stochastic: bool) -> ProblemRuns:
    """Runs every p, K, eta_g in {1, sqrt(N)} and t; all p of a setting see the same gradient noise."""
    found = constants(problem, stochastic=stochastic)
    svr = np.stack([last_share(len(problem.optimum), share) for share in SHARES])
    zeta2 = [outside(problem, mask) for mask in svr]
    cells, curves = [], []
    for steps in _settings(problem):
        random = np.random.default_rng(NOISE_SEED) if stochastic else None
        trace = run(problem, svr, steps, rounds, random=random)
        t = steps.effective * problem.beta
        means = bound.weights(found, steps, rounds) @ trace.errors[:-1]
        for lane, share in enumerate(SHARES):
            cells.append(
                BoundedRun(
                    problem=problem.name,
                    stochastic=stochastic,
                    t=t,
                    local_steps=steps.local_steps,
                    eta_g=steps.eta_g,
                    share=share,
                    zeta2_outside=zeta2[lane],
                    error=float(trace.errors[-1, lane]),
                    mean_error=float(means[lane]),
                    distance=float(trace.distances[-1, lane]),
                    **_bounds(found, zeta2[lane], steps, rounds),
                )
            )
        if steps.local_steps == SHOWN and steps.eta_g == 1:
            curves += [_curve(t, share, trace.errors[:, k]) for k, share in enumerate(SHARES)]
    return ProblemRuns(problem=problem.name, constants=found, cells=cells, curves=curves)


def _settings(problem: Problem) -> Iterator[Steps]:
    for t in (bound.LARGEST, BEYOND):
        for local_steps in LOCAL_STEPS:
            for eta_g in (1.0, float(np.sqrt(problem.num_clients))):
                yield Steps.of(t / problem.beta, local_steps, eta_g)


def _bounds(found: Constants, zeta2: float, steps: Steps, rounds: int) -> dict[str, float | None]:
    if steps.effective * found.beta > bound.LARGEST * (1 + 1e-9):
        return {"error_bound": None, "distance_bound": None, "distance_sharper": None}
    ours, finer = bound.corrected(found, zeta2, steps), bound.sharper(found, zeta2, steps)
    return {
        "error_bound": bound.mean_error(found, ours, steps, rounds),
        "distance_bound": bound.distance(found, ours, steps, rounds),
        "distance_sharper": bound.distance(found, finer, steps, rounds),
    }


def _curve(t: float, share: float, errors: Float64) -> Curve:
    return Curve(t=t, share=share, errors=[float(error) for error in errors])
