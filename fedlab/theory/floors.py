"""Where a constant step comes to rest: by heterogeneity with exact gradients, by N and K with noise alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedlab.theory import bound
from fedlab.theory.method import State, Steps, next_state, run
from fedlab.theory.problem import SHARES, Float64, Mask, constants, last_share, outside
from fedlab.theory.quadratic import Quadratic, quadratics

LOCAL_STEPS = 5
NOISE = 1.0
MANY = (4, 16, 64)
SETTLED, COUNTED = 400, 1200
"""Rounds that are left out, from x* on, and rounds over which the distance is averaged."""


def resting(problem: Quadratic, svr: Mask, steps: Steps) -> State:
    """The state that a round with exact gradients does not change: a round is affine, so one solve finds it.

    `svr` is that of one lane. Every coordinate of x, and of c_i on S_svr, is tried in a lane of its own.
    """
    clients, d = problem.num_clients, len(svr)
    used = np.concatenate([np.ones(d, bool), np.tile(svr, clients)])
    tried = np.concatenate([np.zeros((1, len(used))), np.eye(len(used))[used]])
    lanes = np.broadcast_to(svr, (len(tried), d))
    after = next_state(problem, _split(tried, d), lanes, steps)
    moved = np.concatenate([after.x, after.c_is.reshape(len(tried), -1)], axis=1)[:, used]
    slope = (moved[1:] - moved[0]).T
    found = np.zeros((1, len(used)))
    found[:, used] = np.linalg.solve(np.eye(len(slope)) - slope, moved[0])
    return _split(found, d)


def _split(flat: Float64, d: int) -> State:
    return State(flat[:, :d], flat[:, d:].reshape(len(flat), -1, d))


def resting_distance(problem: Quadratic, svr: Mask, steps: Steps) -> float:
    """||x - x*||^2 at rest."""
    away = resting(problem, svr, steps).x[0] - problem.optimum
    return float(away @ away)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Where FedPVR with a share rests on one quadratic, exact gradients."""

    share: float
    zeta2_outside: float
    distance: float
    bound: float
    sharper: float
    power: float | None
    """x where the distance grows with eta^x; None where there is none."""


def floors(num_clients: int) -> list[Floor]:
    """At the theorem's largest step, K = 5, eta_g = 1."""
    problem = quadratics(num_clients, seed=0)
    found = constants(problem)
    steps = Steps.of(bound.LARGEST / problem.beta, LOCAL_STEPS, 1.0)
    half = Steps.of(steps.effective / 2, LOCAL_STEPS, 1.0)
    rows = []
    for share in SHARES:
        svr = last_share(len(problem.optimum), share)
        zeta2 = outside(problem, svr)
        whole, lesser = (resting_distance(problem, svr, each) for each in (steps, half))
        rows.append(
            Floor(
                share=share,
                zeta2_outside=zeta2,
                distance=whole,
                bound=bound.floor(found, bound.corrected(found, zeta2, steps), steps),
                sharper=bound.floor(found, bound.sharper(found, zeta2, steps), steps),
                power=float(np.log2(whole / lesser)) if zeta2 else None,
            )
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Mean ||x^r - x*||^2 at rest with gradient noise and like clients."""

    num_clients: int
    local_steps: int
    eta_g: float
    share: float
    distance: float
    times: float
    """The distance times N K: constant where the speed-up is linear."""


def noises() -> list[Noise]:
    """By N and eta_g, and by K, for FedAvg, FedPVR and SCAFFOLD, at the theorem's largest step."""
    rows = []
    shares = (0.0, 0.5, 1.0)
    settings = [(n, LOCAL_STEPS, eta_g) for n in MANY for eta_g in (1.0, float(np.sqrt(n)))]
    for clients, local_steps, eta_g in [*settings, (MANY[0], 1, 1.0), (MANY[0], 20, 1.0)]:
        problem = quadratics(clients, seed=0, zeta=0.0, sigma=NOISE)
        svr = np.stack([last_share(len(problem.optimum), share) for share in shares])
        steps = Steps.of(bound.LARGEST / problem.beta, local_steps, eta_g)
        random = np.random.default_rng(clients)
        trace = run(problem, svr, steps, SETTLED + COUNTED, start=problem.optimum, random=random)
        rows += [
            Noise(
                num_clients=clients,
                local_steps=local_steps,
                eta_g=eta_g,
                share=share,
                distance=float(found),
                times=float(found) * clients * local_steps,
            )
            for share, found in zip(shares, trace.distances[SETTLED:].mean(0), strict=True)
        ]
    return rows
